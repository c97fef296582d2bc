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

// getRaw copies the body of a GET from the API server.
func (c *clients) getRaw(ctx context.Context, path string, to io.Writer) error {
	cfg := rest.CopyConfig(c.controlPlane.Config)
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

// collectGarbage triggers a garbage collection in the API server: with tens of thousands of objects it takes seconds,
// in one turn or the other.
func (c *clients) collectGarbage(ctx context.Context) error {
	return c.getRaw(ctx, "/debug/pprof/heap?gc=1", io.Discard)
}

// readServerMetrics returns the metrics of the API server.
func (c *clients) readServerMetrics(ctx context.Context) (string, error) {
	var text bytes.Buffer
	err := c.getRaw(ctx, "/metrics", &text)
	return text.String(), err
}

// countEndedWatches returns the number of watches that have ended, of all clients. The API server counts a request when
// it ends.
func (c *clients) countEndedWatches(ctx context.Context) (float64, error) {
	text, err := c.readServerMetrics(ctx)
	if err != nil {
		return 0, err
	}
	sum := 0.0
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "apiserver_request_total{") || !strings.Contains(line, `verb="WATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, '}')+1:]), 64)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

// readServerMetric returns a metric of the API server that has no labels.
func (c *clients) readServerMetric(ctx context.Context, name string) (float64, error) {
	text, err := c.readServerMetrics(ctx)
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
