package bus

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/narad-mq/narad/libs/topic"
)

const (
	// version of the payloads; another one is dropped.
	version = 1
	// MaxPayload is the size of a payload in bytes; larger ones are dropped unread.
	// The largest that this release makes has about 400.
	MaxPayload = 4 << 10
	// maxMemberID is the size of a member id, in bytes, that is handed on.
	maxMemberID = 63
)

// kind of a message: its last subject token, and its label in metrics.
type kind string

const (
	topicPurged    kind = "topic_purged"
	memberDraining kind = "member_draining"
)

// kinds are all there are.
var kinds = [...]kind{topicPurged, memberDraining}

// subject of a kind in a cluster.
func (k kind) subject(clusterID string) string {
	return fmt.Sprintf("narad.%s.v%d.%s", clusterID, version, k)
}

// envelope is what all payloads begin with.
type envelope struct {
	V      int        `json:"v"`
	ID     topic.ID64 `json:"id"`
	From   string     `json:"from"`
	SentAt string     `json:"sent_at"`
}

// purged is the payload of topic_purged.
type purged struct {
	envelope
	Topic       string            `json:"topic"`
	Incarnation topic.Incarnation `json:"incarnation"`
}

// draining is the payload of member_draining.
type draining struct {
	envelope
	Member   string `json:"member"`
	Draining *bool  `json:"draining"`
}

// seal fills an envelope.
func seal(id topic.ID64, from string, at time.Time) envelope {
	return envelope{V: version, ID: id, From: from, SentAt: at.UTC().Format("2006-01-02T15:04:05.000Z")}
}

// encode writes a payload.
func encode(payload any) ([]byte, error) {
	b, err := json.Marshal(payload)
	if err != nil {
		return nil, fmt.Errorf("encode a bus message: %w", err)
	}
	if len(b) > MaxPayload {
		return nil, fmt.Errorf("encode a bus message: %d bytes, limit %d", len(b), MaxPayload)
	}
	return b, nil
}

// event is a message that passed the judge. It is still a claim of a stranger.
type event struct {
	kind        kind
	topic       string
	incarnation topic.Incarnation
	member      string
	draining    bool
}

// judge reads a payload; false: it is to be dropped. What it lets pass is well
// formed, and no more than that.
func judge(k kind, payload []byte) (event, bool) {
	if len(payload) > MaxPayload {
		return event{}, false
	}
	// The version alone first: another one may give every other field another type.
	var v struct {
		V int `json:"v"`
	}
	if json.Unmarshal(payload, &v) != nil || v.V != version {
		return event{}, false
	}
	switch k {
	case topicPurged:
		var p purged
		if json.Unmarshal(payload, &p) != nil || topic.ValidateName(p.Topic) != nil || p.Incarnation == 0 {
			return event{}, false
		}
		return event{kind: k, topic: p.Topic, incarnation: p.Incarnation}, true
	case memberDraining:
		var p draining
		if json.Unmarshal(payload, &p) != nil || p.Member == "" || len(p.Member) > maxMemberID || p.Draining == nil {
			return event{}, false
		}
		return event{kind: k, member: p.Member, draining: *p.Draining}, true
	}
	return event{}, false
}
