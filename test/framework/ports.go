package framework

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below the range that the kernel gives to outgoing connections: a free port of that range may
// be taken between the check and the moment a server listens on it.
const (
	firstPort = 20000
	portCount = 5000
)

// portLocks are listeners. A port is locked by a listener at that port plus portCount. The listeners stay open as
// long as this process lives, so processes that run at the same time get different ports, and a killed process
// releases its ports.
var portLocks struct {
	sync.Mutex
	listeners []net.Listener
}

// FreePort returns a port on 127.0.0.1 on which no process listens, and which no other process gets from this
// function while this process lives.
func FreePort() (int, error) {
	const tries = 1000
	for range tries {
		port := firstPort + rand.IntN(portCount)
		lock, err := net.Listen("tcp", loopbackAddress(port+portCount)) //nolint:noctx // it does not block
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", loopbackAddress(port)) //nolint:noctx // it does not block
		if err != nil {
			_ = lock.Close()
			continue
		}
		_ = probe.Close()
		portLocks.Lock()
		portLocks.listeners = append(portLocks.listeners, lock)
		portLocks.Unlock()
		return port, nil
	}
	return 0, fmt.Errorf("no free port in %d tries between %d and %d", tries, firstPort, firstPort+portCount-1)
}

// loopbackAddress returns the address of a port on 127.0.0.1.
func loopbackAddress(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
