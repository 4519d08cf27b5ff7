package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"slices"
)

// What bbolt writes into its file, as far as it is checked here: numbers in the
// byte order of the machine, which is little on all that fencepost is made for.
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltPageHead   = 16
	boltMetaSize   = 64 // of which the last eight bytes are the checksum
	boltBranch     = 0x01
	boltLeaf       = 0x02
	boltBucketLeaf = 0x01 // an element of a leaf that is a bucket
	maxBoltDepth   = 64
)

// checkPages goes through a bbolt file, page by page. bbolt trusts its pages: it
// panics at one that is damaged, when it is opened even in a goroutine of its own,
// where nobody can turn that into a message; and of two meta pages, one of which is
// damaged, it takes the other, which may be the state before the last transaction:
// a vote less, or entries less (P9). Meta pages are smaller than a sector, so no
// loss of power leaves half of one.
//
// It reads only. Nothing else may have the file open for writing.
func checkPages(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err // a new file, or one that could not be begun
	}
	w := &pageWalk{f: f, size: info.Size()}
	if err := w.meta(); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	w.seen = make([]bool, w.pages)
	if err := w.tree(w.root, span{}, 0); err != nil {
		return fmt.Errorf("%s is damaged: %w", path, err)
	}
	return nil
}

type pageWalk struct {
	f           io.ReaderAt
	size        int64
	pageSize    int64
	root, pages uint64
	seen        []bool // pages that are in use
	in          string // name of the bucket
}

// meta reads both meta pages; the newer one says where the tree is.
func (w *pageWalk) meta() error {
	w.pageSize = int64(os.Getpagesize())
	var newest uint64
	for i := range int64(2) {
		b := make([]byte, boltPageHead+boltMetaSize)
		if _, err := w.f.ReadAt(b, i*w.pageSize); err != nil {
			return fmt.Errorf("meta page %d cannot be read: %w", i, err)
		}
		b = b[boltPageHead:]
		h := fnv.New64a()
		h.Write(b[:boltMetaSize-8])
		if u32(b) != boltMagic || u32(b[4:]) != boltVersion || u64(b[56:]) != h.Sum64() {
			return fmt.Errorf("meta page %d has a wrong checksum", i)
		}
		if size := int64(u32(b[8:])); size != w.pageSize {
			return fmt.Errorf("its pages have %d bytes, and this machine's %d", size, w.pageSize)
		}
		if txid := u64(b[48:]); txid >= newest {
			newest, w.root, w.pages = txid, u64(b[16:]), u64(b[40:])
		}
	}
	if int64(w.pages) > w.size/w.pageSize {
		return fmt.Errorf("it has %d pages, and %d are in use: it was cut short", w.size/w.pageSize, w.pages)
	}
	return nil
}

// settingsBucket is the one of raft-boltdb that has all but the entries.
const settingsBucket = "conf"

// settings are the keys in it. One that is damaged would be missed without a word:
// as if the node had not voted, or had no journal.
func settings() []string {
	return []string{currentTerm, "LastVoteTerm", "LastVoteCand", string(logOwner), string(journalOwner)}
}

// span is where the keys of a page must be: not before from, and before to; nil:
// there is no such end.
type span struct{ from, to []byte }

func (s span) has(key []byte) bool {
	return bytes.Compare(key, s.from) >= 0 && (s.to == nil || bytes.Compare(key, s.to) < 0)
}

// below is what is done with a page that another one refers to.
type below func(id uint64, keys span) error

// tree checks a page and all below it.
func (w *pageWalk) tree(id uint64, keys span, depth int) error {
	b, err := w.page(id)
	if err != nil {
		return err
	}
	if depth > maxBoltDepth {
		return errors.New("its tree is deeper than any can be")
	}
	return w.elements(b, fmt.Sprintf("page %d", id), keys, func(child uint64, keys span) error { return w.tree(child, keys, depth+1) })
}

// page reads a page with what overflows from it.
func (w *pageWalk) page(id uint64) ([]byte, error) {
	if id < 2 || id >= w.pages {
		return nil, fmt.Errorf("it refers to page %d of %d", id, w.pages)
	}
	head := make([]byte, boltPageHead)
	if _, err := w.f.ReadAt(head, int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("page %d cannot be read: %w", id, err)
	}
	more := uint64(u32(head[12:]))
	if u64(head) != id || more >= w.pages-id {
		return nil, fmt.Errorf("what is at page %d is none, or another", id)
	}
	for p := id; p <= id+more; p++ {
		if w.seen[p] {
			return nil, fmt.Errorf("page %d is in use twice", p)
		}
		w.seen[p] = true
	}
	b := make([]byte, int64(more+1)*w.pageSize)
	if _, err := w.f.ReadAt(b, int64(id)*w.pageSize); err != nil {
		return nil, fmt.Errorf("page %d cannot be read: %w", id, err)
	}
	return b, nil
}

// elements checks what is in a page: all of it within the page, in order of keys.
func (w *pageWalk) elements(b []byte, name string, keys span, down below) error {
	kind, count := binary.LittleEndian.Uint16(b[8:]), int(binary.LittleEndian.Uint16(b[10:]))
	if kind != boltLeaf && kind != boltBranch || boltPageHead+16*count > len(b) {
		return fmt.Errorf("%s is neither branch nor leaf", name)
	}
	all := make([]element, count)
	for i := range all {
		var ok bool
		if all[i], ok = elementAt(b, i, kind == boltLeaf); !ok {
			return fmt.Errorf("an element of %s reaches beyond it", name)
		}
		if !keys.has(all[i].key) || i > 0 && bytes.Compare(all[i-1].key, all[i].key) >= 0 {
			return fmt.Errorf("the keys of %s are out of order", name)
		}
	}
	for i, e := range all {
		var err error
		switch {
		case kind == boltBranch:
			under := span{e.key, keys.to}
			if i+1 < count {
				under.to = all[i+1].key
			}
			err = down(e.page, under)
		case e.flags == boltBucketLeaf:
			err = w.bucket(e.key, e.value, down)
		case kind == boltLeaf && w.in == settingsBucket && !slices.Contains(settings(), string(e.key)):
			err = fmt.Errorf("%q is nothing that a node stores", e.key)
		case e.flags != 0:
			err = fmt.Errorf("an element of %s is of no known kind", name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

type element struct {
	flags      uint32
	page       uint64 // of a branch
	key, value []byte
}

// elementAt is an element of a page; false: it is not within the page.
func elementAt(b []byte, i int, leaf bool) (e element, ok bool) {
	at := boltPageHead + 16*i
	head := b[at:]
	pos, keySize, valueSize := uint64(u32(head)), uint64(u32(head[4:])), uint64(0)
	if leaf {
		e.flags = u32(head)
		pos, keySize, valueSize = uint64(u32(head[4:])), uint64(u32(head[8:])), uint64(u32(head[12:]))
	} else {
		e.page = u64(head[8:])
	}
	from := uint64(at) + pos
	if from+keySize+valueSize > uint64(len(b)) {
		return e, false
	}
	e.key, e.value = b[from:from+keySize], b[from+keySize:from+keySize+valueSize]
	return e, true
}

// bucket checks one that has pages of its own, or is so small that it is a value.
func (w *pageWalk) bucket(name, b []byte, down below) error {
	if len(b) < 16 {
		return fmt.Errorf("bucket %q is cut off", name)
	}
	w.in = string(name)
	defer func() { w.in = "" }()
	if root := u64(b); root != 0 {
		return down(root, span{})
	}
	if len(b) < 16+boltPageHead {
		return fmt.Errorf("bucket %q is cut off", name)
	}
	return w.elements(b[16:], fmt.Sprintf("bucket %q", name), span{}, func(uint64, span) error {
		return fmt.Errorf("bucket %q is a value and has pages", name)
	})
}

func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
