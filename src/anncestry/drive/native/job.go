package main

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"
)

const protocolVersion = 2

const (
	statusOK      = 0
	statusError   = 1
	statusTimeout = 2
)

// transport says how requests are sent; protocol.py describes its fields.
type transport struct {
	Kind        string            `json:"kind"`
	Target      string            `json:"target"`
	Targets     []string          `json:"targets"`
	Method      string            `json:"method"`
	Path        string            `json:"path"`
	Headers     map[string]string `json:"headers"`
	User        string            `json:"user"`
	PasswordEnv string            `json:"password_env"`
	Credentials *credentials      `json:"authorization"`
	Database    string            `json:"database"`
	Init        []string          `json:"init"`
	Prepare     []string          `json:"prepare"`
	Raw         bool              `json:"raw"`
	TLS         *secrecy          `json:"tls"`

	known map[string]string
}

// target is where a client connects, as the job says it: an address, or what stands for one that no file shall hold.
func (t *transport) target(client int) string {
	if len(t.Targets) == 0 {
		return t.Target
	}
	return t.Targets[client%len(t.Targets)]
}

// reach is the address itself.
func (t *transport) reach(client int) string {
	if address, known := t.known[t.target(client)]; known {
		return address
	}
	return t.target(client)
}

// credentials name the environment variable that holds them, and how they become the header "authorization".
type credentials struct {
	Env    string `json:"env"`
	Scheme string `json:"scheme"`
}

func (c *credentials) header() string {
	switch c.Scheme {
	case "base64":
		return base64.StdEncoding.EncodeToString([]byte(os.Getenv(c.Env)))
	case "apikey":
		return "ApiKey " + os.Getenv(c.Env)
	}
	return "Bearer " + os.Getenv(c.Env)
}

// job is what the harness left in a folder.
type job struct {
	Version   int       `json:"version"`
	Transport transport `json:"transport"`
	Requests  string    `json:"requests"`
	Clients   int       `json:"clients"`
	Loop      string    `json:"loop"`
	Threads   int       `json:"threads"`
	DurationS *float64  `json:"duration_s"`
	TimeoutS  float64   `json:"timeout_s"`
	AnswerMax int64     `json:"answer_bytes_max"`

	folder   string
	data     []byte
	offsets  []uint64
	schedule [][]uint32
	prime    [][]uint32
	due      []int64
}

// readTogether names the folders within this one whose jobs are run together; of a single job, the folder itself ("").
func readTogether(folder string) ([]string, error) {
	text, err := os.ReadFile(filepath.Join(folder, "job.json"))
	if err != nil {
		return nil, err
	}
	var found struct {
		Version  int      `json:"version"`
		Together []string `json:"together"`
	}
	if err := json.Unmarshal(text, &found); err != nil {
		return nil, fmt.Errorf("job.json: %w", err)
	}
	if found.Version != protocolVersion {
		return nil, fmt.Errorf("job.json: version %d, this driver reads %d", found.Version, protocolVersion)
	}
	if len(found.Together) == 0 {
		return []string{""}, nil
	}
	return found.Together, nil
}

func readJob(folder string, known map[string]string) (*job, error) {
	text, err := os.ReadFile(filepath.Join(folder, "job.json"))
	if err != nil {
		return nil, err
	}
	j := &job{folder: folder, Transport: transport{known: known}}
	if err := json.Unmarshal(text, j); err != nil {
		return nil, fmt.Errorf("job.json: %w", err)
	}
	if j.Version != protocolVersion {
		return nil, fmt.Errorf("job.json: version %d, this driver reads %d", j.Version, protocolVersion)
	}
	if j.AnswerMax <= 0 || j.Clients <= 0 {
		return nil, fmt.Errorf("job.json: answer_bytes_max and clients have to be positive")
	}
	if j.data, err = os.ReadFile(filepath.Join(j.Requests, "requests.bin")); err != nil {
		return nil, err
	}
	if j.offsets, err = numbers[uint64](j.Requests, "requests.idx"); err != nil {
		return nil, err
	}
	schedule, err := numbers[uint32](folder, "schedule.bin")
	if err != nil {
		return nil, err
	}
	prime, err := numbers[uint32](folder, "prime.bin")
	if err != nil {
		return nil, err
	}
	rows := j.Clients
	if j.Loop == "open" {
		rows = 1
		if j.due, err = numbers[int64](folder, "due.bin"); err != nil {
			return nil, err
		}
	}
	j.schedule, j.prime = split(schedule, rows), split(prime, j.Clients)
	for _, row := range append(append([][]uint32{}, j.schedule...), j.prime...) {
		for _, index := range row {
			if int(index)+1 >= len(j.offsets) {
				return nil, fmt.Errorf("a schedule asks for request %d of %d", index, len(j.offsets)-1)
			}
		}
	}
	return j, nil
}

func (j *job) request(index uint32) []byte {
	return j.data[j.offsets[index]:j.offsets[index+1]]
}

func split(values []uint32, rows int) [][]uint32 {
	length := len(values) / rows
	parts := make([][]uint32, rows)
	for i := range parts {
		parts[i] = values[i*length : (i+1)*length]
	}
	return parts
}

func numbers[T uint32 | uint64 | int64](folder, name string) ([]T, error) {
	data, err := os.ReadFile(filepath.Join(folder, name))
	if err != nil {
		return nil, err
	}
	size := int(unsafe.Sizeof(T(0)))
	if len(data)%size != 0 {
		return nil, fmt.Errorf("%s: %d bytes are no whole number of entries", name, len(data))
	}
	values := make([]T, len(data)/size)
	for i := range values {
		if size == 4 {
			values[i] = T(binary.LittleEndian.Uint32(data[4*i:]))
		} else {
			values[i] = T(binary.LittleEndian.Uint64(data[8*i:]))
		}
	}
	return values, nil
}
