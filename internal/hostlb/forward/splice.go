//go:build linux

package forward

import (
	"errors"
	"io"
	"net"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is what goes through a pipe at once: what the kernel makes it of. Larger ones are slower, for what sends and what
	// receives take turns, and a user may have 64 MB of them (fs.pipe-user-pages-soft): beyond that they are of two pages.
	pipeSize = 64 << 10
	// pipesKept are those that are kept for the next who needs one.
	pipesKept = 64
)

// pipe is what bytes go through from a socket to another without a copy.
type pipe struct{ in, out int }

var pipes = make(chan pipe, pipesKept)

func takePipe() (pipe, error) {
	select {
	case p := <-pipes:
		return p, nil
	default:
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return pipe{}, err
	}
	return pipe{in: ends[1], out: ends[0]}, nil
}

// give gives an empty pipe back.
func (p pipe) give() {
	select {
	case pipes <- p:
	default:
		p.close()
	}
}

func (p pipe) close() {
	_ = unix.Close(p.in)
	_ = unix.Close(p.out)
}

// move moves what one socket gets to another until it ends. It has a pipe only while there is something in it. (That of io.Copy is
// held by connections that are idle too, and is of 1 MB: with 32 connections the user may have no more.)
func move(to, from *net.TCPConn, take func() (pipe, error)) error {
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
		noPipe  error
	)
	fill := func(fd uintptr) (done bool) {
		if p, noPipe = take(); noPipe != nil {
			return true
		}
		if n, err = splice(int(fd), p.in, pipeSize); n <= 0 {
			p.give()
		}
		return !errors.Is(err, unix.EAGAIN)
	}
	drain := func(fd uintptr) (done bool) {
		n, err = splice(p.out, int(fd), left)
		return !errors.Is(err, unix.EAGAIN)
	}
	for {
		waited := source.Read(fill)
		if noPipe != nil { // no file is left: by a copy
			_, err := io.Copy(struct{ io.Writer }{to}, struct{ io.Reader }{from})
			return err
		}
		if waited != nil || err != nil || n == 0 {
			return errors.Join(waited, err)
		}
		for left = n; left > 0; left -= n {
			if waited := sink.Write(drain); waited != nil || err != nil {
				p.close() // with what is in it
				return errors.Join(waited, err)
			}
		}
		p.give()
	}
}

// splice does not wait, so Go's scheduler is not told of it: it would have other threads take over, and wait for them after.
func splice(from, to int, most int64) (int64, error) {
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
