package metastate

import (
	"fmt"

	"github.com/narad-mq/narad/libs/problem"
)

// Apply carries out one encoded entry in tx. An error means that the node must
// stop applying for good; tx must then be dropped. A refusal is no error.
func Apply(tx Tx, raw []byte) (Result, error) {
	e, err := Decode(raw)
	if err != nil {
		return Result{}, err
	}
	res, err := ApplyEntry(tx, e)
	if err != nil {
		return Result{}, fmt.Errorf("apply entry of type %d: %w", e.EntryType(), err)
	}
	return res, nil
}

// ApplyEntry is Apply for a decoded entry.
func ApplyEntry(tx Tx, e Entry) (Result, error) {
	if err := noteType(tx, e.EntryType()); err != nil {
		return Result{}, err
	}
	switch e := e.(type) {
	case *ClusterID:
		return applyClusterID(tx, e)
	case *RegisterMember:
		return applyRegister(tx, e)
	case *Heartbeats:
		return applyHeartbeats(tx, e)
	case *MarkDead:
		return applyMarkDead(tx, e)
	case *CreateTopic:
		return applyCreate(tx, e)
	case *UpdateTopic:
		return applyUpdate(tx, e)
	case *DeleteTopic:
		return applyDelete(tx, e)
	case *ForgetEnded:
		return applyForgetEnded(tx, e)
	case *BeginElections:
		return applyBeginElections(tx, e)
	case *ElectLeaders:
		return applyElectLeaders(tx, e)
	case *RecordCopies:
		return applyRecordCopies(tx, e)
	case *ChangeReplicas:
		return applyChangeReplicas(tx, e)
	case *GrowTopic:
		return applyGrow(tx, e)
	case *SetDraining:
		return applySetDraining(tx, e)
	case *RemoveMember:
		return applyRemoveMember(tx, e)
	case *Moves:
		return applyMoves(tx, e)
	case *ResetPartition:
		return applyReset(tx, e)
	case *AttachChild:
		return applyAttach(tx, e)
	case *DetachChild:
		return applyDetach(tx, e)
	case *CreateChild:
		return applyCreateChild(tx, e)
	}
	return Result{}, fmt.Errorf("%w: %d", ErrUnknownEntryType, e.EntryType())
}

// noteType keeps the newest type ever applied, so that a release that does not
// know it refuses the state instead of serving it.
func noteType(tx Tx, t Type) error {
	newest, err := NewestApplied(tx)
	if err != nil || t <= newest {
		return err
	}
	return put(tx, BucketMeta, []byte(keyNewestType), t)
}

func applyClusterID(tx Tx, e *ClusterID) (Result, error) {
	have, err := ReadClusterID(tx)
	switch {
	case err != nil:
		return Result{}, err
	case e.ID == "":
		return refuse(problem.InvalidRequest, "the cluster id is empty"), nil
	case have == e.ID:
		return Result{}, nil
	case have != "":
		return refuse(problem.WrongCluster, "this cluster has another id").with("cluster_id", have), nil
	}
	if err := put(tx, BucketMeta, []byte(keyClusterID), e.ID); err != nil {
		return Result{}, err
	}
	return Result{Effects: Effects{ClusterID: true}}, nil
}
