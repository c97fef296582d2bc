// Package inspect turns the objects of one moment into what a person wants to know of them: how full the
// pools are, who has an address, why a claim waits. It decides and does not print; the little that it reads
// besides, it is given a reader for.
package inspect
