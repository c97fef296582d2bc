package page

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// problem is an error that is the caller's.
type problem struct {
	code int
	text string
}

func (p problem) Error() string { return p.text }

func badf(format string, args ...any) error {
	return problem{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// reply writes what was asked for as JSON, compressed, or nothing where the caller has it already.
func reply(w http.ResponseWriter, r *http.Request, what any, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // nothing of it stays on a disk
	var mine problem
	switch {
	case errors.As(err, &mine):
		w.WriteHeader(mine.code)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": mine.text})
		return
	case err != nil:
		http.Error(w, `{"error":"internal error"}`, http.StatusInternalServerError)
		return
	}
	text, err := json.Marshal(what)
	if err != nil {
		http.Error(w, `{"error":"internal error"}`, http.StatusInternalServerError)
		return
	}
	tag := tagOf(text)
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	const worthIt = 1024
	if len(text) > worthIt && accepts(r) {
		text = packed(text, gzip.BestSpeed)
		h.Set("Content-Encoding", "gzip")
	}
	_, _ = w.Write(text)
}
