// A reader of the proof log, written from docs/proof-log.md with the standard library alone:
//
//	log-reader PREFIX KEY-LINE [CHECKPOINT-FILE | LINEAGE.json ...]
//
// It follows the key through its rotations, verifies the checkpoint, every leaf and tile, and that each checkpoint kept earlier is
// of the first leaves, and each lineage answer's leaf in the tree that it names.
package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func fail(format string, args ...any) {
	fmt.Printf("WRONG "+format+"\n", args...)
	os.Exit(1)
}

func check(err error) {
	if err != nil {
		fail("%v", err)
	}
}

func get(url string) ([]byte, bool) {
	answer, err := http.Get(url) // accepts gzip, and unpacks it
	check(err)
	defer answer.Body.Close()
	if answer.StatusCode == 404 {
		return nil, false
	}
	if answer.StatusCode != 200 {
		fail("%s answers %d", url, answer.StatusCode)
	}
	body, err := io.ReadAll(answer.Body)
	check(err)
	return body, true
}

func must(url string) []byte {
	body, found := get(url)
	if !found {
		fail("%s is missing", url)
	}
	return body
}

func decode(text string) []byte {
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	check(err)
	return data
}

// A key and the sizes of the trees that it signs.
type key struct {
	line, origin string
	public       ed25519.PublicKey
	from, to     int
}

func idOf(origin string, kind byte, public []byte) []byte {
	sum := sha256.Sum256(append(append([]byte(origin+"\n"), kind), public...))
	return sum[:4]
}

func parseKey(line string) key {
	parts := strings.SplitN(strings.TrimSpace(line), "+", 3)
	if len(parts) != 3 {
		fail("%q is no key", line)
	}
	data := decode(parts[2])
	if len(data) != 33 || data[0] != 1 || hex.EncodeToString(idOf(parts[0], 1, data[1:])) != parts[1] {
		fail("%q is no Ed25519 key with its id", line)
	}
	return key{strings.TrimSpace(line), parts[0], data[1:], 0, 1 << 62}
}

// signed says whether the key signed a note, and when, if a line says so. Lines of other keys are ignored.
func (k key) signed(note string) (text string, ok bool, at int64) {
	end := strings.LastIndex(note, "\n\n")
	if end < 0 {
		fail("a note has no empty line")
	}
	text = note[:end+1]
	for _, line := range strings.Split(strings.TrimSuffix(note[end+2:], "\n"), "\n") {
		parts := strings.Split(line, " ")
		if len(parts) != 3 || parts[0] != "—" {
			fail("%q is no line of a signature", line)
		}
		data := decode(parts[2])
		if parts[1] != k.origin || len(data) < 4 {
			continue
		}
		if bytes.Equal(data[:4], idOf(k.origin, 1, k.public)) {
			if !ed25519.Verify(k.public, []byte(text), data[4:]) {
				fail("a signature of %s does not hold", k.line)
			}
			ok = true
		}
		if bytes.Equal(data[:4], idOf(k.origin, 4, k.public)) {
			at = int64(binary.BigEndian.Uint64(data[4:]))
			if !ed25519.Verify(k.public, []byte(fmt.Sprintf("cosignature/v1\ntime %d\n%s", at, text)), data[12:]) {
				fail("a time of %s does not hold", k.line)
			}
		}
	}
	return
}

// follow gives the keys from the trusted one on.
func follow(trusted key, rotations string) []key {
	keys := []key{trusted}
	notes := strings.SplitAfter(rotations, "\n")
	for {
		last := &keys[len(keys)-1]
		var next *key
		for at := 0; at+6 <= len(notes); at += 6 {
			text, ok, _ := last.signed(strings.Join(notes[at:at+6], ""))
			lines := strings.Split(text, "\n")
			if !ok || lines[0] != last.origin+" key rotation" {
				continue
			}
			if next != nil {
				fail("the key %s was rotated twice", last.line)
			}
			found := parseKey(lines[1])
			size, err := strconv.Atoi(lines[2])
			check(err)
			found.from, last.to, next = size, size, &found
		}
		if next == nil {
			return keys
		}
		keys = append(keys, *next)
	}
}

type head struct {
	size int
	root []byte
	at   int64
}

func open(note string, keys []key) head {
	for _, k := range keys {
		text, ok, at := k.signed(note)
		lines := strings.Split(text, "\n")
		size, err := strconv.Atoi(lines[1])
		check(err)
		if ok && lines[0] == k.origin && k.from <= size && size <= k.to {
			return head{size, decode(lines[2]), at}
		}
	}
	fail("none of the keys of its size signed the checkpoint\n%s", note)
	return head{}
}

func leafHash(leaf []byte) []byte {
	sum := sha256.Sum256(append([]byte{0}, leaf...))
	return sum[:]
}

func node(left, right []byte) []byte {
	sum := sha256.Sum256(append(append([]byte{1}, left...), right...))
	return sum[:]
}

// root of RFC 6962, 2.1
func root(hashes [][]byte) []byte {
	switch len(hashes) {
	case 0:
		sum := sha256.Sum256(nil)
		return sum[:]
	case 1:
		return hashes[0]
	}
	split := 1
	for split*2 < len(hashes) {
		split *= 2
	}
	return node(root(hashes[:split]), root(hashes[split:]))
}

// climb gives the root that an inclusion proof leads to, the leaf's sibling first.
func climb(hash []byte, index, size int, proof [][]byte) []byte {
	last := size - 1
	for _, beside := range proof {
		if index%2 == 1 || index == last {
			hash = node(beside, hash)
			for index%2 == 0 && index != 0 {
				index, last = index/2, last/2
			}
		} else {
			hash = node(hash, beside)
		}
		index, last = index/2, last/2
	}
	return hash
}

func tilePath(index, width int) string {
	path := fmt.Sprintf("%03d", index%1000)
	for index /= 1000; index > 0; index /= 1000 {
		path = fmt.Sprintf("x%03d/%s", index%1000, path)
	}
	if width < 256 {
		path += fmt.Sprintf(".p/%d", width)
	}
	return path
}

func main() {
	prefix, trusted := os.Args[1], parseKey(os.Args[2])
	rotations, _ := get(prefix + "rotations") // 404: none
	keys := follow(trusted, string(rotations))
	log := open(string(must(prefix+"checkpoint")), keys)
	age := time.Now().Unix() - log.at
	if log.at == 0 || age > 3600 || age < -300 {
		fail("the checkpoint was signed %d s ago", age)
	}
	named := strings.TrimSpace(string(must(prefix + "key")))
	if named != keys[len(keys)-1].line {
		fail("the log names the key %s", named)
	}
	// Leaves, and level 0.
	var leaves, hashes [][]byte
	for tile := 0; tile*256 < log.size; tile++ {
		width := min(256, log.size-tile*256)
		rest := must(prefix + "tile/entries/" + tilePath(tile, width))
		level0 := must(prefix + "tile/0/" + tilePath(tile, width))
		for at := 0; at < width; at++ {
			length := int(binary.BigEndian.Uint16(rest))
			leaf := rest[2 : 2+length]
			rest = rest[2+length:]
			leaves, hashes = append(leaves, leaf), append(hashes, leafHash(leaf))
			if !bytes.Equal(level0[at*32:at*32+32], hashes[len(hashes)-1]) {
				fail("leaf %d is not that of its tile", len(leaves)-1)
			}
		}
		if len(rest) > 0 || len(level0) != width*32 {
			fail("tile %d has more than %d leaves", tile, width)
		}
	}
	if !bytes.Equal(root(hashes), log.root) {
		fail("the leaves do not give the root")
	}
	// The levels above.
	below := hashes
	tiles := 0
	for level := 1; len(below) >= 256; level++ {
		var own [][]byte
		for at := 0; at+256 <= len(below); at += 256 {
			own = append(own, root(below[at:at+256]))
		}
		for tile := 0; tile*256 < len(own); tile++ {
			part := own[tile*256 : min(len(own), tile*256+256)]
			if !bytes.Equal(must(fmt.Sprintf("%stile/%d/%s", prefix, level, tilePath(tile, len(part)))), bytes.Join(part, nil)) {
				fail("tile %d of level %d is not made of its leaves", tile, level)
			}
			tiles++
		}
		below = own
	}
	// Each rotation is the leaf whose index it names.
	for at, k := range keys[:len(keys)-1] {
		var leaf struct{ Kind, Note string }
		if k.to < log.size {
			check(json.Unmarshal(leaves[k.to], &leaf))
		}
		if leaf.Kind != "rotated" || !strings.Contains(string(rotations), leaf.Note) || !strings.Contains(leaf.Note, keys[at+1].line) {
			fail("leaf %d is not the rotation to %s", k.to, keys[at+1].line)
		}
	}
	fmt.Printf("%d leaves, %d keys, %d tiles above level 0, signed %d s ago\n", log.size, len(keys), tiles, max(0, age))
	for _, path := range os.Args[3:] {
		text, err := os.ReadFile(path)
		check(err)
		if text[0] != '{' {
			old := open(string(text), keys)
			if old.size > log.size || !bytes.Equal(root(hashes[:old.size]), old.root) {
				fail("%s is not of the first %d leaves", path, old.size)
			}
			fmt.Printf("the log continues the checkpoint of %d leaves\n", old.size)
			continue
		}
		var answer struct {
			Checkpoint string
			ProofLog   struct {
				State, Leaf string
				Index       int `json:"leaf_index"`
				Inclusion   []string
			} `json:"proof_log"`
		}
		check(json.Unmarshal(text, &answer))
		proved, under := answer.ProofLog, open(answer.Checkpoint, keys)
		var proof [][]byte
		for _, hash := range proved.Inclusion {
			proof = append(proof, decode(hash))
		}
		if !bytes.Equal(climb(leafHash([]byte(proved.Leaf)), proved.Index, under.size, proof), under.root) {
			fail("leaf %d is not in the tree of %d leaves", proved.Index, under.size)
		}
		fmt.Printf("leaf %d is in the tree of %d leaves\n", proved.Index, under.size)
	}
}
