package gossip

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
)

// Limits of the cluster secret, in bytes without the white space around it.
const (
	// MinSecretBytes: 16 random characters are more than a guesser gets through.
	MinSecretBytes = 16
	// MaxSecretBytes bounds what is read: a secret, not data.
	MaxSecretBytes = 4 << 10
)

// keyDomain keeps the key apart from whatever else is made of the same secret.
const keyDomain = "narad gossip key 1\n"

// ErrSecret is below every refusal of a secret.
var ErrSecret = errors.New("refused cluster secret")

// Key makes the key of the gossip plane, for AES-256, of a cluster secret.
// White space around the secret does not count.
func Key(secret []byte) ([]byte, error) {
	secret = bytes.TrimSpace(secret)
	if len(secret) < MinSecretBytes || len(secret) > MaxSecretBytes {
		return nil, fmt.Errorf("%w: it has %d bytes, want %d to %d", ErrSecret, len(secret), MinSecretBytes, MaxSecretBytes)
	}
	sum := sha256.Sum256(append([]byte(keyDomain), secret...))
	return sum[:], nil
}

// ReadKey makes the key of the secret in a file.
func ReadKey(path string) (_ []byte, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the cluster secret: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	raw, err := io.ReadAll(io.LimitReader(f, 2*MaxSecretBytes))
	if err != nil {
		return nil, fmt.Errorf("read the cluster secret %s: %w", path, err)
	}
	key, err := Key(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}
