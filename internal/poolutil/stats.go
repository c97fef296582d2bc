package poolutil

// Empty reports whether nothing is free.
func (f *Free) Empty() bool { return f.byPlace.Len() == 0 }

// Largest returns the size of the largest free block, at most math.MaxInt64: the most that BestFit can take.
func (f *Free) Largest() int64 {
	b, ok := f.bySize.Max()
	if !ok {
		return 0
	}
	return b.saturatedSize()
}

// Blocks returns the number of free blocks.
func (f *Free) Blocks() int { return f.byPlace.Len() }

// FragmentationPercent returns the share of the free addresses that are outside the largest free block, rounded down: 0
// if there is at most one block, and towards 100 the more scattered they are. With more than 2^57 free addresses it is
// computed from the highest 57 bits of the counts.
func (f *Free) FragmentationPercent() int32 {
	if f.Blocks() < 2 {
		return 0
	}
	largest, _ := f.bySize.Max()
	total := f.total
	outside := total.SubWrap(largest.size())
	if length := total.Len(); length > 57 {
		total, outside = total.Rsh(uint(length-57)), outside.Rsh(uint(length-57))
	}
	return int32(100 * outside.Lo / total.Lo)
}
