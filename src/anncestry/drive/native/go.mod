module anncestry/driver

go 1.26

require (
	golang.org/x/net v0.48.0
	golang.org/x/sys v0.40.0
)
