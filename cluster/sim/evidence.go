package sim

import (
	"time"

	"fencepost/cluster/check"
)

// watchBound is by how much a watcher may be late when all has healed: its stream may
// have just been cut, and an idle one is told only every ten seconds how far it is.
const watchBound = 3 * time.Second

// told is the newest index that anybody was answered with.
func (w *world) told() (index uint64) {
	for _, x := range w.rec.History().Exchanges {
		index = max(index, x.Index)
	}
	return index
}

// keptUp demands of every watcher that it had come to an index when its last stream
// ended. What it had until there is for the judge of the log, to which a stream that
// says nothing is a sound one.
func keptUp(streams []*check.Stream, index uint64) *check.Verdict {
	v := &check.Verdict{Name: "P13 watchers keep up"}
	reached, few := make(map[string]uint64), make(map[string]bool)
	for _, s := range streams {
		reached[s.Watcher] = max(reached[s.Watcher], s.Reached)
		few[s.Watcher] = s.Kind != "" || s.Prefix != "" // and is idle, perhaps
	}
	for name, at := range reached {
		if at < index && !few[name] {
			v.Find("%s has come to index %d, %s after %d was told", name, at, watchBound, index)
		}
	}
	if v.Count("%d watchers", len(reached)); len(reached) < watchers {
		v.Find("%d of %d watchers have watched", len(reached), watchers)
	}
	return v
}
