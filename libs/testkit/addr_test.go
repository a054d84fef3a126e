package testkit

import "testing"

// TestPortsAreClaimed: nobody is given a port of somebody else, although nobody listens
// at any of them; what a test took is free again after it.
func TestPortsAreClaimed(t *testing.T) {
	given := map[string]int{}
	give := func(who int, addr string) {
		if was, taken := given[addr]; taken {
			t.Fatalf("%s was given to %d and to %d", addr, was, who)
		}
		given[addr] = who
	}
	const processes, ports = 60, blockPorts + 5 // of 343 blocks: without the claim two would meet
	for who := range processes {
		var p owner
		t.Cleanup(func() {
			for _, l := range p.claims {
				_ = l.Close()
			}
		})
		for range ports {
			give(who, p.freeAddr(t))
		}
	}
	for who := range processes {
		t.Run("a row", func(t *testing.T) {
			first := FreePorts(t, blockPorts-1)
			for port := first; port < first+blockPorts-1; port++ {
				if was, taken := given[loopback(port)]; taken {
					t.Fatalf("%d was given to %d and to %d", port, was, who)
				}
			}
		})
	}
}
