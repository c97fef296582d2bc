package framework

import (
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/util/cert"
)

// WriteServingCerts writes a certificate for loopback into a directory, in the layout that a manager's
// --webhook-cert-dir expects, and returns the CA that verifies it.
func WriteServingCerts(dir string) (ca []byte, err error) {
	// The returned chain holds the certificate and its CA.
	chain, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("making a certificate: %w", err)
	}
	for name, text := range map[string][]byte{"tls.crt": chain, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			return nil, err
		}
	}
	return chain, nil
}
