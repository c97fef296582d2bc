package page

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"
	"strings"
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

var seed = maphash.MakeSeed()

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
		http.Error(w, `{"error":"it failed"}`, http.StatusInternalServerError)
		return
	}
	text, err := json.Marshal(what)
	if err != nil {
		http.Error(w, `{"error":"it failed"}`, http.StatusInternalServerError)
		return
	}
	tag := fmt.Sprintf(`"%x"`, maphash.Bytes(seed, text))
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	const worthIt = 1024
	if len(text) > worthIt && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		var packed bytes.Buffer
		z, err := gzip.NewWriterLevel(&packed, gzip.BestSpeed)
		if err == nil {
			_, _ = z.Write(text) // a buffer takes everything
			_ = z.Close()
			h.Set("Content-Encoding", "gzip")
			text = packed.Bytes()
		}
	}
	_, _ = w.Write(text)
}
