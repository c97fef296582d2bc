package page

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"hash/maphash"
	"io/fs"
	"mime"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var embeddedFiles embed.FS

// Files serves the files of the page. They are public in its repository, so nothing in them is secret.
type Files struct {
	http.Handler
	byPath map[string]staticFile
}

// staticFile is one file, plain and compressed.
type staticFile struct {
	contentType, etag   string
	content, compressed []byte
}

func newFiles() Files {
	all := map[string]staticFile{}
	err := fs.WalkDir(embeddedFiles, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := embeddedFiles.ReadFile(name)
		all[strings.TrimPrefix(name, "static/")] = staticFile{
			contentType: mime.TypeByExtension(path.Ext(name)), etag: newETag(text), content: text, compressed: compressGzip(text, gzip.BestCompression),
		}
		return err
	})
	if err != nil {
		panic(err) // the directory is compiled in
	}
	all[""] = all["index.html"]
	return Files{byPath: all, Handler: withSecurityHeaders(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, ok := all[strings.TrimPrefix(r.URL.Path, PagePath)]
		if !ok {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-cache") // another manager may have other files
		h.Set("Vary", "Accept-Encoding")
		text := f.content
		if acceptsGzip(r) && len(f.compressed) < len(f.content) {
			text, f.etag = f.compressed, strings.TrimSuffix(f.etag, `"`)+`-gzip"`
			h.Set("Content-Encoding", "gzip")
		}
		h.Set("ETag", f.etag)
		if f.contentType == "" {
			f.contentType = "text/plain; charset=utf-8"
		}
		h.Set("Content-Type", f.contentType)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	}))}
}

var etagSeed = maphash.MakeSeed()

// newETag returns the ETag of a text.
func newETag(text []byte) string { return fmt.Sprintf(`"%x"`, maphash.Bytes(etagSeed, text)) }

func acceptsGzip(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// compressGzip compresses a text with gzip.
func compressGzip(text []byte, level int) []byte {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		panic(err) // the level is a constant
	}
	_, _ = z.Write(text) // a write to a buffer cannot fail
	_ = z.Close()
	return out.Bytes()
}
