package framework

import (
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below the range that the kernel gives to outgoing connections: a free port of
// that range may be gone between the moment it is seen free and the moment a server listens on it.
const (
	firstPort = 20000
	ports     = 5000
)

// locks are listeners, each at the port that lies as far above firstPort+ports as the locked one
// lies above firstPort. They stay open as long as this process lives, so processes that run at the
// same time are given different ports, and one that is killed gives its ports back.
var locks struct {
	sync.Mutex
	listeners []net.Listener
}

// FreePort returns a port on 127.0.0.1 that nothing listens on and that no other process which asks
// this function is given while this one lives.
func FreePort() (int, error) {
	const tries = 1000
	for range tries {
		port := firstPort + rand.IntN(ports)
		lock, err := net.Listen("tcp", loopback(port+ports)) //nolint:noctx // it does not block
		if err != nil {
			continue
		}
		probe, err := net.Listen("tcp", loopback(port)) //nolint:noctx // it does not block
		if err != nil {
			_ = lock.Close()
			continue
		}
		_ = probe.Close()
		locks.Lock()
		locks.listeners = append(locks.listeners, lock)
		locks.Unlock()
		return port, nil
	}
	return 0, fmt.Errorf("no free port in %d tries between %d and %d", tries, firstPort, firstPort+ports-1)
}

// loopback is the address of a port on 127.0.0.1.
func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
