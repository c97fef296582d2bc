package options

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// EnvironmentPrefix is the prefix of variables that set flags: BUTLER_IPAM_FLAG_load-balancers=true is
// --load-balancers=true. The Deployment reads them from ConfigMaps of its namespace. An upgrade with clusterctl does
// not change these, but sets the arguments to those of the release.
const EnvironmentPrefix = "BUTLER_IPAM_FLAG_"

// ApplyEnvironment sets each flag that the environment has a variable for, and the command line does not set. It
// returns what is wrong with them, one line for each.
func ApplyEnvironment(fs *pflag.FlagSet, environ []string) error {
	var wrong []error
	for _, entry := range environ {
		variable, value, _ := strings.Cut(entry, "=")
		name, ok := strings.CutPrefix(variable, EnvironmentPrefix)
		if !ok {
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
