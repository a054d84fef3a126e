package edge

import "golang.org/x/sys/unix"

// hungUp asks the kernel whether the peer has sent its end of stream or a reset.
// Poll sees that behind unread bytes too, where a peek would see only the bytes.
func hungUp(fd int) bool {
	set := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(set, 0)
	return err == nil && n > 0 && set[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR|unix.POLLNVAL) != 0
}
