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
var static embed.FS

// Files are the files of the page, as anybody can read them in its repository: nothing in them is secret.
type Files struct {
	http.Handler
	all map[string]file
}

// file is one of them, as it is and compressed.
type file struct {
	kind, tag     string
	plain, packed []byte
}

func files() Files {
	all := map[string]file{}
	err := fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := static.ReadFile(name)
		all[strings.TrimPrefix(name, "static/")] = file{
			kind: mime.TypeByExtension(path.Ext(name)), tag: tagOf(text), plain: text, packed: packed(text, gzip.BestCompression),
		}
		return err
	})
	if err != nil {
		panic(err) // the folder is compiled in
	}
	all[""] = all["index.html"]
	return Files{all: all, Handler: guarded(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, is := all[strings.TrimPrefix(r.URL.Path, Path)]
		if !is {
			http.NotFound(w, r)
			return
		}
		h := w.Header()
		h.Set("Cache-Control", "no-cache") // another manager may have other files
		h.Set("Vary", "Accept-Encoding")
		text := f.plain
		if accepts(r) && len(f.packed) < len(f.plain) {
			text, f.tag = f.packed, strings.TrimSuffix(f.tag, `"`)+`-gzip"`
			h.Set("Content-Encoding", "gzip")
		}
		h.Set("ETag", f.tag)
		if f.kind == "" {
			f.kind = "text/plain; charset=utf-8"
		}
		h.Set("Content-Type", f.kind)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	}))}
}

var seed = maphash.MakeSeed()

// tagOf is the ETag of a text.
func tagOf(text []byte) string { return fmt.Sprintf(`"%x"`, maphash.Bytes(seed, text)) }

func accepts(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
}

// packed is a text compressed by gzip.
func packed(text []byte, level int) []byte {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, level)
	if err != nil {
		panic(err) // the level is a constant
	}
	_, _ = z.Write(text) // a buffer takes everything
	_ = z.Close()
	return out.Bytes()
}
