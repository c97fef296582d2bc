package main

import goflag "flag"

// goFlags are the flags that libraries register on their own, --kubeconfig among them.
func goFlags() *goflag.FlagSet { return goflag.CommandLine }
