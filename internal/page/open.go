package page

import (
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// FilterProvider creates the filter that authenticates callers; nil for none.
type FilterProvider = func(*rest.Config, *http.Client) (server.Filter, error)

// AllowAnonymousFiles permits anonymous access to the files of the page, and to nothing else. A browser cannot send a
// token before it has a page that sends it; the data that the page then shows is filtered like everything else.
func AllowAnonymousFiles(provider FilterProvider) FilterProvider {
	if provider == nil {
		return nil
	}
	return func(cfg *rest.Config, c *http.Client) (server.Filter, error) {
		filter, err := provider(cfg, c)
		if err != nil {
			return nil, err
		}
		return func(log logr.Logger, handler http.Handler) (http.Handler, error) {
			if _, open := handler.(Files); open {
				return handler, nil
			}
			return filter(log, handler)
		}, nil
	}
}
