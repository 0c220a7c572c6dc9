package main

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"
)

const (
	scramName = "SCRAM-SHA-256"
	// RFC 7677 asks for no fewer rounds; more would cost the driver seconds that a hostile server chooses.
	scramRoundsMin = 4096
	scramRoundsMax = 1_000_000
)

// scram is one login by SCRAM-SHA-256 (RFC 5802, RFC 7677), without channel binding.
type scram struct {
	password, nonce string
	told            string // the client's first message without its header
	server          []byte // what the server must show in the end
	done            bool
}

func newScram(password string) *scram {
	raw := make([]byte, 18)
	_, _ = rand.Read(raw) // never fails (crypto/rand)
	return &scram{password: password, nonce: base64.StdEncoding.EncodeToString(raw)}
}

func (s *scram) first() []byte {
	s.told = "n=,r=" + s.nonce
	return []byte("n,," + s.told)
}

func digest(key []byte, text string) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// proof answers the server's nonce, salt and number of rounds.
func (s *scram) proof(said string) ([]byte, error) {
	parts := map[string]string{}
	for _, part := range strings.Split(said, ",") {
		if name, value, ok := strings.Cut(part, "="); ok {
			parts[name] = value
		}
	}
	salt, err := base64.StdEncoding.DecodeString(parts["s"])
	rounds, wrong := strconv.Atoi(parts["i"])
	_, asksMore := parts["m"]
	if s.server != nil || err != nil || wrong != nil || len(salt) == 0 || asksMore || !strings.HasPrefix(parts["r"], s.nonce) {
		return nil, fmt.Errorf("the server's part of the login is not SCRAM")
	}
	if rounds < scramRoundsMin || rounds > scramRoundsMax {
		return nil, fmt.Errorf("the server asks for %d rounds of SCRAM, the driver does %d to %d", rounds, scramRoundsMin, scramRoundsMax)
	}
	salted, err := pbkdf2.Key(sha256.New, s.password, salt, rounds, sha256.Size)
	if err != nil {
		return nil, err
	}
	key := digest(salted, "Client Key")
	stored := sha256.Sum256(key)
	final := "c=biws,r=" + parts["r"]
	whole := s.told + "," + said + "," + final
	s.server = digest(digest(salted, "Server Key"), whole)
	proof := exclusive(key, digest(stored[:], whole))
	return []byte(final + ",p=" + base64.StdEncoding.EncodeToString(proof)), nil
}

// check says whether the server knows the password, too: only after proof, which says what it must show.
func (s *scram) check(said string) error {
	shown, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(said, "v="))
	if err != nil || s.server == nil || s.done || !hmac.Equal(shown, s.server) {
		return fmt.Errorf("the server did not show that it knows the password")
	}
	s.done = true
	return nil
}
