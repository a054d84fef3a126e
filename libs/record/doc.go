// Package record is the codec of messages and batches: the bytes that a WAL
// frame, a partition log and a node RPC share.
package record
