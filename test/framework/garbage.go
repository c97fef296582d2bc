package framework

import (
	"fmt"
	"os"
	"path/filepath"
)

// gcEnv makes etcd and kube-apiserver collect garbage less often: with GOGC=100 a fifth of their time goes into it.
// Their live memory is a few hundred megabytes; the memory limit bounds heap and garbage where several servers share
// a machine.
const gcEnv = "GOGC=400 GOMEMLIMIT=1500MiB"

// writeBinaryWrappers writes scripts that start etcd and kube-apiserver of the directory assets with gcEnv, and
// returns the directory of the scripts. Scripts are needed because the library that starts both passes them the
// environment of the tests, which the managers get too.
func writeBinaryWrappers(dir, assets string) (string, error) {
	wrapped := filepath.Join(dir, "bin")
	if err := os.Mkdir(wrapped, 0o700); err != nil {
		return "", err
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		script := fmt.Sprintf("#!/bin/sh\n%s exec '%s' \"$@\"\n", gcEnv, filepath.Join(assets, name))
		if err := os.WriteFile(filepath.Join(wrapped, name), []byte(script), 0o700); err != nil {
			return "", err
		}
	}
	return wrapped, nil
}
