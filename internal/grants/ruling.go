package grants

// Ruling is what is decided on a claimant before any address is looked at.
type Ruling struct {
	// Waits: nothing is done for it now, and nothing is said but what holds it up. Silent: nor is that said here. Kept: that
	// is somebody else's finalizer on its IPAddress, not a pause.
	Waits, Silent, Kept bool
	// Outlived: what it has is its Cluster's, which is there.
	Outlived bool
	// Refused is why it gets nothing; nil: an address is looked for.
	Refused *Refusal
	// Gate is how its Cluster was found, open where nobody looked. It is looked at again when a Cluster changes that
	// was not open.
	Gate Gate
}

// Admit decides on a claimant.
type Admit func(c *Claimant) Ruling

// Note remembers what a ruling has to be told for, and which Cluster it waits for.
func (m *Memory) Note(c *Claimant, r Ruling) {
	if r.Gate != ClusterOpen || r.Outlived {
		m.WaitingClusters[c.Cluster] = struct{}{}
	}
	switch {
	case !r.Waits || r.Silent:
	case r.Kept:
		m.noteKept(c)
	case r.Outlived:
		m.noteOutlived(c)
	default:
		m.NotePause(c, r.Gate)
	}
}

// Noting is admit, and notes what it finds.
func (m *Memory) Noting(admit Admit) Admit {
	return func(c *Claimant) Ruling {
		r := admit(c)
		m.Note(c, r)
		return r
	}
}

// Gate says whether the Cluster of a claim lets it be served.
type Gate int

// How a Cluster was found: it lets its claims be served, is paused, does not exist, or could not be read.
const (
	ClusterOpen Gate = iota
	ClusterPaused
	ClusterAbsent
	ClusterUnknown
)
