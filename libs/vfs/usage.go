package vfs

// UsedPercent is how full the file system that holds name is, rounded up as df
// does it: 100 when nothing more can be written. 0 when it cannot be told: it is
// for display and warnings, and whoever writes meets the same disk.
func UsedPercent(f FS, name string) int {
	total, free, err := f.Usage(name)
	if err != nil || total == 0 {
		return 0
	}
	return int(100 - min(free, total)*100/total)
}
