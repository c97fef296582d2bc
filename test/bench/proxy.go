package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/butlerdotdev/cluster-api-ipam-provider-butler/test/framework"
)

// clusterView presents two namespaces of an API server as a cluster of its own: it shows the Services of one, and the
// other under the name of MetalLB's namespace. In this way one API server acts as many workload clusters.
type clusterView struct {
	services, metalLB string
	server            *http.Server
	kubeconfig        []byte
}

func newClusterView(ctx context.Context, config *rest.Config, services, metalLB string) (*clusterView, error) {
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, err
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, err
	}
	v := &clusterView{services: services, metalLB: metalLB}
	proxy := &httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			v.rewriteRequest(r.Out)
		},
		ModifyResponse: v.rewriteResponse,
	}
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	v.server = &http.Server{Handler: proxy, ReadHeaderTimeout: time.Minute}
	go func() { _ = v.server.Serve(listener) }() // until the server is closed
	out := clientcmdapi.NewConfig()
	out.Clusters["view"] = &clientcmdapi.Cluster{Server: "http://" + listener.Addr().String()}
	out.AuthInfos["view"] = &clientcmdapi.AuthInfo{}
	out.Contexts["view"] = &clientcmdapi.Context{Cluster: "view", AuthInfo: "view"}
	out.CurrentContext = "view"
	v.kubeconfig, err = clientcmd.Write(*out)
	return v, err
}

// rewriteRequest turns a request for the cluster into one for the namespaces. It requests JSON, because the view
// replaces names in the text of the response.
func (v *clusterView) rewriteRequest(r *http.Request) {
	r.Header.Set("Accept", "application/json")
	r.Header.Del("Accept-Encoding")
	if r.URL.Path == "/api/v1/services" {
		r.URL.Path = fmt.Sprintf("/api/v1/namespaces/%s/services", v.services)
	}
	r.URL.Path = strings.ReplaceAll(r.URL.Path, "/"+framework.MetalLBNamespace, "/"+v.metalLB)
	if r.Body != nil && r.Method != http.MethodGet {
		r.Body = v.replaceInStream(r.Body, framework.MetalLBNamespace, v.metalLB)
		r.ContentLength = -1
		r.Header.Del("Content-Length")
	}
}

func (v *clusterView) rewriteResponse(r *http.Response) error {
	r.Body = v.replaceInStream(r.Body, v.metalLB, framework.MetalLBNamespace)
	r.Header.Del("Content-Length")
	r.ContentLength = -1
	return nil
}

// replaceInStream replaces a name in a stream of text, line by line: an event of a watch is a line.
func (v *clusterView) replaceInStream(body io.ReadCloser, from, to string) io.ReadCloser {
	reader, writer := io.Pipe()
	go func() {
		defer body.Close()
		lines := bufio.NewReader(body)
		for {
			line, err := lines.ReadBytes('\n')
			if _, failed := writer.Write(bytes.ReplaceAll(line, []byte(`"`+from+`"`), []byte(`"`+to+`"`))); failed != nil {
				return
			}
			if err != nil {
				writer.CloseWithError(err)
				return
			}
		}
	}()
	return reader
}
