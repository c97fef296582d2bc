// Package inspect answers questions about the objects of one moment: how full the pools are, which object holds an
// address, why a claim waits. It decides and does not print. The few objects that it reads besides come from a reader
// that the caller passes.
package inspect
