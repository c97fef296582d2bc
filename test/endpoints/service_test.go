package endpoints

import (
	"context"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
)

// service acts as a Service: it forwards each connection to one of the running managers.
type service struct {
	listener net.Listener
	mu       sync.Mutex
	ports    []int
}

func newService(port int) (*service, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", at(port))
	if err != nil {
		return nil, err
	}
	s := &service{listener: l}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.serve(conn)
		}
	}()
	return s, nil
}

func at(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

func (s *service) add(port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports = append(s.ports, port)
}

func (s *service) remove(port int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ports = slices.DeleteFunc(s.ports, func(p int) bool { return p == port })
}

// next returns the ports of the managers, beginning with the one that has been idle longest.
func (s *service) next() []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ports) > 1 {
		s.ports = append(s.ports[1:], s.ports[0])
	}
	return slices.Clone(s.ports)
}

func (s *service) serve(conn net.Conn) {
	defer conn.Close()
	for _, port := range s.next() {
		to, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", at(port))
		if err != nil {
			continue
		}
		done := make(chan struct{})
		go func() {
			_, _ = io.Copy(to, conn)
			_ = to.Close()
			close(done)
		}()
		_, _ = io.Copy(conn, to)
		_ = conn.Close()
		<-done
		return
	}
}
