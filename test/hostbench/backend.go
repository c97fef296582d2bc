//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// serveBackend runs the backend until its input ends. It does as little as possible.
func serveBackend(ctx context.Context) error {
	bytes, err := new(net.ListenConfig).Listen(ctx, "tcp4", fmt.Sprintf("%s:%d", backendAddress, portBytes))
	if err != nil {
		return err
	}
	connections, err := listenRaw(unix.SOCK_STREAM, portConnections)
	if err != nil {
		return err
	}
	packets, err := listenRaw(unix.SOCK_DGRAM, portUDP)
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	go func() { failed <- sendBytes(bytes) }()
	go func() { failed <- answerConnections(connections) }()
	go func() { failed <- answerPackets(packets) }()
	ended := make(chan struct{})
	go func() { defer close(ended); waitForEnd(ctx) }()
	select {
	case err := <-failed:
		return err
	case <-ended:
		return nil
	}
}

// listenRaw returns a blocking socket: a thread that does nothing else needs no poller.
func listenRaw(kind, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	to := &unix.SockaddrInet4{Port: port}
	copy(to.Addr[:], net.ParseIP(backendAddress).To4())
	if err := unix.Bind(fd, to); err != nil || kind == unix.SOCK_DGRAM {
		return fd, err
	}
	// Each accepted connection has already sent its request.
	return fd, errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_DEFER_ACCEPT, 5), unix.Listen(fd, 4096))
}

// sendBytes sends bytes to each client for as long as it takes them, out of one page cache. Calls that do not block are
// raw, here and in the client: otherwise Go would use more threads, and they would take CPUs from the programs that are
// measured.
func sendBytes(l net.Listener) error {
	const size = 1 << 20
	fd, err := unix.MemfdCreate("bytes", 0)
	if err != nil {
		return err
	}
	file := os.NewFile(uintptr(fd), "bytes")
	if _, err := file.Write(make([]byte, size)); err != nil {
		return err
	}
	for {
		c, err := l.Accept()
		if err != nil {
			return err
		}
		raw, err := c.(*net.TCPConn).SyscallConn()
		if err != nil {
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			for err == nil {
				if waited := raw.Write(func(to uintptr) bool {
					var offset int64
					_, _, errno := unix.RawSyscall6(unix.SYS_SENDFILE, to, uintptr(fd), uintptr(unsafe.Pointer(&offset)), size, 0, 0)
					if errno != 0 && errno != unix.EAGAIN {
						err = errno
					}
					return errno != unix.EAGAIN
				}); waited != nil {
					return
				}
			}
		}()
	}
}

// answerConnections answers one request of each connection, and closes it.
func answerConnections(listener int) error {
	buffer := make([]byte, 256)
	for {
		fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if err != nil {
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
				continue
			}
			return fmt.Errorf("accepting: %w", err)
		}
		if n, err := unix.Read(fd, buffer); err == nil && n > 0 {
			_, _ = unix.Write(fd, buffer[:n])
		}
		_ = unix.Close(fd)
	}
}

// answerPackets sends each packet back.
func answerPackets(fd int) error {
	buffer := make([]byte, 2048)
	var from unix.RawSockaddrInet4
	for {
		size := uint32(unsafe.Sizeof(from))
		n, _, errno := unix.Syscall6(unix.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)), 0,
			uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&size)))
		if errno != 0 {
			if errno == unix.EINTR {
				continue
			}
			return fmt.Errorf("receiving: %w", errno)
		}
		_, _, _ = unix.Syscall6(unix.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(&buffer[0])), n, 0,
			uintptr(unsafe.Pointer(&from)), uintptr(size))
	}
}
