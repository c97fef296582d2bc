package options

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// Environment is what variables begin with that set flags: BUTLER_IPAM_FLAG_load-balancers=true is --load-balancers=true.
// The Deployment reads them from ConfigMaps of its namespace, which an upgrade with clusterctl leaves alone: it puts the
// arguments back to those of the release.
const Environment = "BUTLER_IPAM_FLAG_"

// FromEnvironment sets the flags of which the environment has a variable, and the command line nothing. It returns what is
// wrong with them, one line for each.
func FromEnvironment(fs *pflag.FlagSet, environ []string) error {
	var wrong []error
	for _, entry := range environ {
		variable, value, _ := strings.Cut(entry, "=")
		name, ours := strings.CutPrefix(variable, Environment)
		if !ours {
			continue
		}
		flag := fs.Lookup(name)
		if flag == nil {
			wrong = append(wrong, fmt.Errorf("%s: there is no flag --%s", variable, name))
			continue
		}
		if flag.Changed {
			continue
		}
		if err := fs.Set(name, value); err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", variable, err))
		}
	}
	return errors.Join(wrong...)
}
