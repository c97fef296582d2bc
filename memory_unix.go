//go:build unix

package main

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// untouch gives the memory behind a slice back, as far as it has any: the runtime zeroes a large one where it
// was in use before, which takes memory for all of it.
func untouch(b []byte) {
	page := uintptr(os.Getpagesize())
	skip := (page - uintptr(unsafe.Pointer(unsafe.SliceData(b)))%page) % page //nolint:gosec // an address, to align it
	whole := (uintptr(len(b)) - skip) / page * page
	_ = unix.Madvise(b[skip:skip+whole], unix.MADV_DONTNEED) // it is advice
}
