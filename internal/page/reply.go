package page

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// requestError is an error that the caller of the API caused.
type requestError struct {
	statusCode int
	message    string
}

func (p requestError) Error() string { return p.message }

func badRequestf(format string, args ...any) error {
	return requestError{http.StatusBadRequest, fmt.Sprintf(format, args...)}
}

// writeReply writes a result as JSON, compressed where that helps, or only a status where the caller has the same
// result already.
func writeReply(w http.ResponseWriter, r *http.Request, reply any, err error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // browsers keep no copy on disk
	var known requestError
	switch {
	case errors.As(err, &known):
		w.WriteHeader(known.statusCode)
		_ = json.NewEncoder(w).Encode(map[string]string{"error": known.message})
		return
	case err != nil:
		http.Error(w, `{"error":"internal error"}`, http.StatusInternalServerError)
		return
	}
	text, err := json.Marshal(reply)
	if err != nil {
		http.Error(w, `{"error":"internal error"}`, http.StatusInternalServerError)
		return
	}
	tag := newETag(text)
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	const minGzipSize = 1024
	if len(text) > minGzipSize && acceptsGzip(r) {
		text = compressGzip(text, gzip.BestSpeed)
		h.Set("Content-Encoding", "gzip")
	}
	_, _ = w.Write(text)
}
