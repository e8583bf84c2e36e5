// Package check tests the files of server/deploy as far as they can be without a container engine: the image is built
// and run by hand, the chart is rendered and decoded, the compose file and the systemd unit are checked by the
// libraries and programs that read them. Start at the tests.
package check
