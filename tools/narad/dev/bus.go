package dev

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// busStart is how long the server inside this process may take; 10 ms are normal.
const busStart = 10 * time.Second

// serveBus runs a NATS server at addr, without storage and without a log, until stop
// is called.
func serveBus(addr string) (stop func(), err error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, fmt.Errorf("NATS server at %q: %w", addr, err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		return nil, fmt.Errorf("NATS server at %q: %w", addr, err)
	}
	s, err := server.NewServer(&server.Options{ServerName: "narad-dev", Host: host, Port: number, NoLog: true, NoSigs: true, NoSystemAccount: true})
	if err != nil {
		return nil, fmt.Errorf("NATS server at %s: %w", addr, err)
	}
	s.Start()
	stop = func() { s.Shutdown(); s.WaitForShutdown() }
	if !s.ReadyForConnections(busStart) {
		stop()
		return nil, fmt.Errorf("the NATS server at %s did not start within %s", addr, busStart)
	}
	return stop, nil
}
