//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	kindBytes       = "bytes"
	kindConnections = "connections"
	kindUDP         = "udp"
	kindKept        = "udp-kept"

	inFlight  = 32
	clients   = 64
	question  = 64 // bytes
	warmUp    = 500 * time.Millisecond
	lostAfter = 200 * time.Millisecond
)

// done is what a load has done, and what was lost or failed.
type done struct {
	N      int64         `json:"n"`
	In     time.Duration `json:"in"`
	Failed int64         `json:"failed"`
}

// load is the client: it prints what it has done.
func load(args []string) error {
	flags := flag.NewFlagSet(roleLoad, flag.ContinueOnError)
	kind := flags.String("kind", "", "")
	to := flags.String("to", "", "")
	streams := flags.Int("streams", 1, "")
	each := flags.Duration("each", time.Second, "")
	if err := flags.Parse(args); err != nil {
		return err
	}
	address, err := netip.ParseAddrPort(*to)
	if err != nil {
		return err
	}
	var n, failed atomic.Int64
	ended := make(chan error, 1)
	go func() {
		switch *kind {
		case kindBytes:
			ended <- loadBytes(address, *streams, &n)
		case kindConnections:
			ended <- loadConnections(address, &n, &failed)
		default:
			ended <- loadUDP(address, &n, &failed)
		}
	}()
	var d done
	select {
	case err := <-ended:
		return err
	case <-time.After(warmUp):
	}
	// What is measured begins and ends with a line.
	fmt.Println("begun")
	begun := time.Now()
	d.N, d.Failed = -n.Load(), -failed.Load()
	select {
	case err := <-ended:
		return err
	case <-time.After(*each):
	}
	d.N, d.Failed, d.In = d.N+n.Load(), d.Failed+failed.Load(), time.Since(begun)
	return json.NewEncoder(os.Stdout).Encode(d)
}

// loadBytes takes bytes, and throws them away in the kernel.
func loadBytes(to netip.AddrPort, streams int, bytes *atomic.Int64) error {
	var all sync.WaitGroup
	errs := make([]error, streams)
	for i := range streams {
		all.Go(func() {
			c, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(to))
			if err != nil {
				errs[i] = err
				return
			}
			raw, err := c.SyscallConn()
			buffer := make([]byte, 1<<20)
			for err == nil {
				waited := raw.Read(func(fd uintptr) bool {
					n, _, errno := unix.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), unix.MSG_TRUNC, 0, 0)
					switch {
					case errno == unix.EAGAIN:
						return false
					case errno != 0:
						err = errno
					case n == 0:
						err = errors.New("ended")
					default:
						bytes.Add(int64(n))
					}
					return true
				})
				err = errors.Join(err, waited)
			}
			errs[i] = err
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

func sockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// loadConnections makes connections that ask one question each, some at once, in one thread.
func loadConnections(to netip.AddrPort, n, failed *atomic.Int64) error {
	poll, err := unix.EpollCreate1(0)
	if err != nil {
		return err
	}
	peer, buffer := sockaddr(to), make([]byte, question)
	open := func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, peer); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return fmt.Errorf("connecting: %w", err)
		}
		return unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(fd)})
	}
	for range inFlight {
		if err := open(); err != nil {
			return err
		}
	}
	asked := map[int32]bool{}
	events := make([]unix.EpollEvent, inFlight)
	for {
		ready, err := unix.EpollWait(poll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		for _, e := range events[:max(ready, 0)] {
			if !asked[e.Fd] && e.Events&(unix.EPOLLERR|unix.EPOLLHUP) == 0 {
				asked[e.Fd] = true
				if _, err := unix.Write(int(e.Fd), buffer); err == nil {
					continue
				}
			}
			got, err := answer(int(e.Fd), buffer)
			if errors.Is(err, unix.EAGAIN) {
				continue
			}
			delete(asked, e.Fd)
			_ = unix.Close(int(e.Fd))
			if got {
				n.Add(1)
			} else {
				failed.Add(1)
			}
			if err := open(); err != nil {
				return err
			}
		}
	}
}

// answer reads to the end. The backend ends first, so the client's ports are free at once.
func answer(fd int, buffer []byte) (got bool, err error) {
	for {
		n, err := unix.Read(fd, buffer)
		if err != nil || n == 0 {
			return got || err == nil, err
		}
		got = true
	}
}

// loadUDP has clients that each ask again when they are answered, or have waited for too long, in one thread.
func loadUDP(to netip.AddrPort, n, lost *atomic.Int64) error {
	poll, err := unix.EpollCreate1(0)
	if err != nil {
		return err
	}
	buffer, asked := make([]byte, question), map[int32]time.Time{}
	for range clients {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, sockaddr(to)); err != nil {
			return err
		}
		if err := unix.EpollCtl(poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}); err != nil {
			return err
		}
		if _, err := unix.Write(fd, buffer); err != nil {
			return err
		}
		asked[int32(fd)] = time.Now()
	}
	events := make([]unix.EpollEvent, clients)
	looked := time.Now()
	for {
		ready, err := unix.EpollWait(poll, events, int(lostAfter/time.Millisecond))
		if err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		now := time.Now()
		for _, e := range events[:max(ready, 0)] {
			if _, err := unix.Read(int(e.Fd), buffer); err != nil {
				lost.Add(1)
			} else {
				n.Add(1)
			}
			asked[e.Fd] = now
			_, _ = unix.Write(int(e.Fd), buffer)
		}
		if now.Sub(looked) < lostAfter {
			continue
		}
		looked = now
		for fd, at := range asked {
			if now.Sub(at) >= lostAfter {
				lost.Add(1)
				asked[fd] = now
				_, _ = unix.Write(int(fd), buffer)
			}
		}
	}
}
