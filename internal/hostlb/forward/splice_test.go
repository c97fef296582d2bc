//go:build linux

package forward

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// countEmptyPipes closes and counts the idle pipes. Each must be empty: another connection would send the data that is
// left in it.
func countEmptyPipes(t *testing.T) int {
	t.Helper()
	for n := 0; ; n++ {
		select {
		case p := <-idlePipes:
			if got, err := unix.Read(p.readEnd, make([]byte, 1)); !errors.Is(err, unix.EAGAIN) {
				t.Errorf("%d, %v from a pipe that is kept", got, err)
			}
			p.close()
		default:
			return n
		}
	}
}

// TestCopyStream checks that all data arrives as it was sent, with a pipe, without one, and when there are no pipes
// left.
func TestCopyStream(t *testing.T) {
	none := func() (pipe, error) { return pipe{}, unix.EMFILE }
	for name, take := range map[string]func() func() (pipe, error){
		"by a pipe": func() func() (pipe, error) { return acquirePipe },
		"by a copy": func() func() (pipe, error) { return none },
		"by a pipe, then by a copy": func() func() (pipe, error) {
			had := 0
			return func() (pipe, error) {
				if had++; had > 3 {
					return none()
				}
				return acquirePipe()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			client, from := pair(t)
			to, backend := pair(t)
			sent := make([]byte, 4<<20)
			_, _ = rand.NewChaCha8([32]byte{1}).Read(sent)
			go func() {
				_, _ = client.Write(sent)
				_ = client.CloseWrite()
			}()
			moved := make(chan error, 1)
			go func() {
				err := copyStream(to, from, take())
				moved <- errors.Join(err, to.CloseWrite())
			}()
			if got, err := io.ReadAll(backend); err != nil || !bytes.Equal(got, sent) {
				t.Errorf("%d of %d bytes, or others, %v", len(got), len(sent), err)
			}
			if err := <-moved; err != nil {
				t.Error(err)
			}
			countEmptyPipes(t)
		})
	}
}

// TestMoveKeepsNoPipe checks that a connection that waits has no pipe, and that the data in the pipe of a failed
// connection reaches no other connection.
func TestMoveKeepsNoPipe(t *testing.T) {
	countEmptyPipes(t)
	client, from := pair(t)
	to, backend := pair(t)
	moved := make(chan error, 1)
	go func() { moved <- copyStream(to, from, acquirePipe) }()
	write(t, client, "x")
	if _, err := backend.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return len(idlePipes) == 1 })
	if n := countEmptyPipes(t); n != 1 {
		t.Errorf("%d pipes", n)
	}
	go func() {
		_, _ = io.Copy(client, zeros{})
	}()
	full(t, to)
	resetConn(backend)
	if err := <-moved; err == nil {
		t.Error("no error of a backend that is gone")
	}
	countEmptyPipes(t)
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// full waits until a socket takes nothing more.
func full(t *testing.T, c *net.TCPConn) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	until(t, func() bool {
		var n int
		_ = raw.Control(func(fd uintptr) { n, err = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 0) })
		return err == nil && n == 0
	})
}
