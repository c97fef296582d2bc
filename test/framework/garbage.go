package framework

import (
	"fmt"
	"os"
	"path/filepath"
)

// garbage has etcd and kube-apiserver collect garbage less often: at Go's 100 % a fifth of their time goes into it. Their
// live memory is some hundred megabytes; the limit keeps it and its garbage in bounds where several servers share a machine.
const garbage = "GOGC=400 GOMEMLIMIT=1500MiB"

// wrapBinaries writes scripts that start etcd and kube-apiserver of the directory assets with less garbage collection, and
// returns their directory. They are scripts, as the library that starts both gives them the environment of the tests, which
// is that of the managers, too.
func wrapBinaries(dir, assets string) (string, error) {
	wrapped := filepath.Join(dir, "bin")
	if err := os.Mkdir(wrapped, 0o700); err != nil {
		return "", err
	}
	for _, name := range []string{"etcd", "kube-apiserver"} {
		script := fmt.Sprintf("#!/bin/sh\n%s exec '%s' \"$@\"\n", garbage, filepath.Join(assets, name))
		if err := os.WriteFile(filepath.Join(wrapped, name), []byte(script), 0o700); err != nil {
			return "", err
		}
	}
	return wrapped, nil
}
