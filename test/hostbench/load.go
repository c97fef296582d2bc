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
	kindUDPKept     = "udp-kept"

	connectionsInFlight = 32
	udpClients          = 64
	requestSize         = 64 // bytes
	warmUpTime          = 500 * time.Millisecond
	packetTimeout       = 200 * time.Millisecond
)

// loadResult is how much a load has done, and how much was lost or failed.
type loadResult struct {
	Count   int64         `json:"n"`
	Elapsed time.Duration `json:"in"`
	Failed  int64         `json:"failed"`
}

// runLoad runs the client, and prints what it has done.
func runLoad(args []string) error {
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
	var d loadResult
	select {
	case err := <-ended:
		return err
	case <-time.After(warmUpTime):
	}
	// The measurement begins and ends with a line.
	fmt.Println("begun")
	begun := time.Now()
	d.Count, d.Failed = -n.Load(), -failed.Load()
	select {
	case err := <-ended:
		return err
	case <-time.After(*each):
	}
	d.Count, d.Failed, d.Elapsed = d.Count+n.Load(), d.Failed+failed.Load(), time.Since(begun)
	return json.NewEncoder(os.Stdout).Encode(d)
}

// loadBytes receives bytes, and discards them in the kernel.
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

func toSockaddr(a netip.AddrPort) *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
}

// loadConnections opens connections that send one request each, several at once, in one thread.
func loadConnections(to netip.AddrPort, n, failed *atomic.Int64) error {
	poll, err := unix.EpollCreate1(0)
	if err != nil {
		return err
	}
	peer, buffer := toSockaddr(to), make([]byte, requestSize)
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
	for range connectionsInFlight {
		if err := open(); err != nil {
			return err
		}
	}
	asked := map[int32]bool{}
	events := make([]unix.EpollEvent, connectionsInFlight)
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
			got, err := readReply(int(e.Fd), buffer)
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

// readReply reads to the end. The backend closes first, so the ports of the client are free at once.
func readReply(fd int, buffer []byte) (got bool, err error) {
	for {
		n, err := unix.Read(fd, buffer)
		if err != nil || n == 0 {
			return got || err == nil, err
		}
		got = true
	}
}

// loadUDP runs clients that each send another request when they are answered, or have waited for too long, in one
// thread.
func loadUDP(to netip.AddrPort, n, lost *atomic.Int64) error {
	poll, err := unix.EpollCreate1(0)
	if err != nil {
		return err
	}
	buffer, asked := make([]byte, requestSize), map[int32]time.Time{}
	for range udpClients {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, toSockaddr(to)); err != nil {
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
	events := make([]unix.EpollEvent, udpClients)
	checkedAt := time.Now()
	for {
		ready, err := unix.EpollWait(poll, events, int(packetTimeout/time.Millisecond))
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
		if now.Sub(checkedAt) < packetTimeout {
			continue
		}
		checkedAt = now
		for fd, at := range asked {
			if now.Sub(at) >= packetTimeout {
				lost.Add(1)
				asked[fd] = now
				_, _ = unix.Write(int(fd), buffer)
			}
		}
	}
}
