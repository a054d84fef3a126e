package api

import "time"

// Limits of the API (api.md, section 12). Config holds those that a flag sets.
const (
	// DefaultMaxMessageBytes, MinMaxMessageBytes and MaxMaxMessageBytes bound
	// --max-message-bytes: one message must fit many times into a batch, a WAL
	// segment and the memory budget.
	DefaultMaxMessageBytes = 1 << 20
	MinMaxMessageBytes     = 1 << 10
	MaxMaxMessageBytes     = 4 << 20

	// MinBodyMemory is the least --max-body-memory: four batch bodies at once.
	MinBodyMemory = 64 << 20

	// MaxKeyBytes: keys are hashed and repeated in every delivery; they name, they do not carry.
	MaxKeyBytes = 1 << 10
	// MaxContentTypeBytes fits every registered media type with parameters.
	MaxContentTypeBytes = 256
	// MaxAttributes and the next three bound what a delivery carries besides its payload.
	MaxAttributes         = 16
	MaxAttributeNameBytes = 64
	MaxAttributeBytes     = 1 << 10 // of one value
	MaxAttributesBytes    = 4 << 10 // names and values together

	// MaxBatchMessages bounds a request: one WAL unit, one answer.
	MaxBatchMessages = 1000
	// MaxBatchBytes holds as sent and again after decoding.
	MaxBatchBytes = 16 << 20
	// MaxJSONBytes bounds the body of every other route: a thousand receipt
	// handles take 53 kB.
	MaxJSONBytes = 1 << 20

	// MaxWait is below the idle timeouts of common balancers.
	MaxWait = 30 * time.Second
	// DefaultWait answers a poll without parameters soon, and costs little when idle.
	DefaultWait = 5 * time.Second
	// MaxMessages bounds one consume or replay answer.
	MaxMessages = 1000
	// DefaultReplayLimit is a page that a person can read.
	DefaultReplayLimit = 100
	// DefaultAnswerBytes and MaxAnswerBytes bound the payload bytes of an answer.
	DefaultAnswerBytes = 8 << 20
	MaxAnswerBytes     = 16 << 20
	// MaxNackDelayMS is twelve hours, like the longest visibility timeout.
	MaxNackDelayMS = 43_200_000

	// DefaultListLimit and MaxListLimit bound a page of topics.
	DefaultListLimit = 100
	MaxListLimit     = 1000

	// MaxJSONDepth is how deep a payload may nest to be shown as JSON: decoders
	// of common languages stop between 100 and 1000, or recurse.
	MaxJSONDepth = 64

	// MaxRequestIDBytes bounds a caller's own X-Request-Id, which goes to logs.
	MaxRequestIDBytes = 64

	// settleBudget, metadataBudget and detailsBudget end what the broker behind
	// has not answered; then 504, or partial for details.
	settleBudget   = 5 * time.Second
	metadataBudget = 10 * time.Second
	detailsBudget  = 3 * time.Second // the broker itself stops at 2 s; this is the backstop
	readBudget     = 10 * time.Second
	quorumBudget   = 6 * time.Second // the leader gets 2.5 s, then the servers 2 s; backstop

	// BackupBudget ends a backup whose client reads too slowly: while it streams, the
	// gateway's own copy of the metadata reuses no space. 100 MiB at 1.4 Mbit/s.
	BackupBudget = 10 * time.Minute

	// pooledBytes is the largest buffer kept for reuse: above it, memory that one
	// large request needed would stay for ever.
	pooledBytes = 1 << 20
	// bodyStep is the first buffer of a body. It doubles as bytes arrive, so that
	// a body that is announced and never sent holds next to nothing.
	bodyStep = 8 << 10

	// maxZstdWindow lets a frame of a whole batch refer back to its start, as
	// one-shot encoders write it. Decoding in one piece keeps no window besides.
	maxZstdWindow = MaxBatchBytes
	// updateAttempts: a PATCH without If-Match is tried again when another change
	// came between its read and its write.
	updateAttempts = 3
)
