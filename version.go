package main

// version is what the linker writes here: VERSION of the Makefile. A plain `go build` knows none.
var version = "v0.0.0-dev"
