package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/client-go/rest"
)

// get copies what the API server answers to a GET, as it is.
func (c *clients) get(ctx context.Context, path string, to io.Writer) error {
	cfg := rest.CopyConfig(c.cp.Config)
	cfg.DisableCompression = true
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(cfg.Host, "/")+path, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, resp.Status)
	}
	_, err = io.Copy(to, resp.Body)
	return err
}

// collectGarbage has the API server do so: with tens of thousands of objects it takes seconds, and would fall into
// one turn or the other.
func (c *clients) collectGarbage(ctx context.Context) error {
	return c.get(ctx, "/debug/pprof/heap?gc=1", io.Discard)
}

// serverMetrics are those of the API server.
func (c *clients) serverMetrics(ctx context.Context) (string, error) {
	var text bytes.Buffer
	err := c.get(ctx, "/metrics", &text)
	return text.String(), err
}

// ofServer is a metric of the API server that has no labels.
func (c *clients) ofServer(ctx context.Context, name string) (float64, error) {
	text, err := c.serverMetrics(ctx)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, is := strings.CutPrefix(line, name+" "); is {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("the API server does not export %s", name)
}
