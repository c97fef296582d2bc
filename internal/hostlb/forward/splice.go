//go:build linux

package forward

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is how much goes through a pipe at once: the size that the kernel gives a pipe. Larger pipes are slower,
	// as the sender and the receiver take turns, and a user may have 64 MB of them (fs.pipe-user-pages-soft): beyond that
	// they have two pages each.
	pipeSize = 64 << 10
	// maxIdlePipes is how many pipes are kept for reuse.
	maxIdlePipes = 64
)

// pipe takes bytes from one socket to another without a copy.
type pipe struct{ writeEnd, readEnd int }

var idlePipes = make(chan pipe, maxIdlePipes)

func acquirePipe() (pipe, error) {
	select {
	case p := <-idlePipes:
		return p, nil
	default:
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, err
	}
	return pipe{writeEnd: ends[1], readEnd: ends[0]}, nil
}

// release keeps an empty pipe for reuse, or closes it.
func (p pipe) release() {
	select {
	case idlePipes <- p:
	default:
		p.close()
	}
}

func (p pipe) close() {
	_ = unix.Close(p.writeEnd)
	_ = unix.Close(p.readEnd)
}

// copyStream copies what one socket receives to another until it ends. It has a pipe only while there is data in it.
// (The pipe of io.Copy is also held by idle connections, and has 1 MB: with 32 connections the user may have no more.)
func copyStream(to, from *net.TCPConn, take func() (pipe, error)) error {
	source, err := from.SyscallConn()
	if err != nil {
		return err
	}
	sink, err := to.SyscallConn()
	if err != nil {
		return err
	}
	var (
		p       pipe
		n, left int64
		pipeErr error
	)
	fill := func(fd uintptr) (done bool) {
		if p, pipeErr = take(); pipeErr != nil {
			return true
		}
		if n, err = spliceOnce(int(fd), p.writeEnd, pipeSize); n <= 0 {
			p.release()
		}
		return !errors.Is(err, unix.EAGAIN)
	}
	drain := func(fd uintptr) (done bool) {
		n, err = spliceOnce(p.readEnd, int(fd), left)
		return !errors.Is(err, unix.EAGAIN)
	}
	for {
		waited := source.Read(fill)
		if pipeErr != nil { // no file is left for a pipe
			_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
			return err
		}
		if waited != nil || err != nil || n == 0 {
			return errors.Join(waited, err)
		}
		for left = n; left > 0; left -= n {
			if waited := sink.Write(drain); waited != nil || err != nil {
				p.close() // with the data that is in it
				return errors.Join(waited, err)
			}
		}
		p.release()
	}
}

// spliceOnce does not block, so it bypasses Go's scheduler, which would have other threads take over, and wait for them
// after.
func spliceOnce(from, to int, most int64) (int64, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		switch errno {
		case 0:
			return int64(n), nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}
