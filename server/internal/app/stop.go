package app

import (
	"context"
	"errors"
	"time"
)

// Deadlines of a stop. The settings give running turns a grace period. After it the stop has
// stopMargin:
//
//	grace         running turns continue until they end
//	2.75 s        interrupted agents end, and their partial answers are saved
//	≤ 2 s         streams send the last events of their turns, then they are closed
//	250 ms        the store and the logs close
//
// The time of the agents has no limit here: a command agent that ignores SIGTERM is killed after 4 s. If the
// agents take longer than 2.75 s, the streams have less time. If they take less, the log queue uses the rest:
// standard error is flushed for up to logFlushLimit.
const (
	// stopMargin is the time of a stop after the grace period.
	stopMargin = 5 * time.Second
	// streamDrainTime is the time for streams to send their last events.
	streamDrainTime = 2 * time.Second
	// maxTraceFlushTime is the time to send the last spans to the collector. If the streams have used all of their
	// time, it is minTraceFlushTime of closeTime.
	maxTraceFlushTime, minTraceFlushTime = time.Second, closeTime / 8
	// closeTime is the time to close the store and the logs.
	closeTime = 250 * time.Millisecond
	// changeLogDrainTime is the time of closeTime in which the change log writes its queue.
	changeLogDrainTime = closeTime / 2
	// exitReserve is how long before the end of stopMargin a stop that hangs is ended by an exit.
	exitReserve = closeTime / 4
	// logFlushLimit is the time to write queued log entries to a slow reader of standard error.
	logFlushLimit = stopMargin - streamDrainTime - closeTime
)

// exitDeadline returns the time from the start of a stop to the exit of the process if the stop hangs.
func exitDeadline(grace time.Duration) time.Duration { return grace + stopMargin - exitReserve }

// stop ends the service in this order:
//  1. Probes report that the server is not ready and why, new turns are rejected, and calls that wait for a
//     change end.
//  2. Running turns have the grace period to end. In it they can be read, resumed and cancelled. Then
//     they are interrupted, and their partial answers are saved. If the store has failed, there is no
//     grace period.
//  3. New calls are rejected, and streams send their last events. When streamDrainTime is over, all
//     remaining calls are cancelled.
//  4. The agents, the store and the logs close.
//
// It returns the errors of the store and of closing.
func (s *server) stop(grace time.Duration) error {
	s.onStop()
	s.supervisor.Stopping(exitDeadline(grace))
	s.log.Info("stopping", "running_turns", s.turns.Running(), "grace", grace.String())
	drainDeadline := time.Now().Add(grace + stopMargin - closeTime)

	why := "stopping"
	if s.storeHealthy.Err() != nil {
		why = "store failed" // The log has the cause.
	}
	s.transports.SetNotReady(why)
	s.service.Stop()

	graceful, cancelGraceful := context.WithTimeout(s.storeHealthy, grace)
	defer cancelGraceful()
	s.turns.Stop(graceful)
	if s.peers != nil {
		s.peers.Stop()
	}

	drain, cancelDrain := context.WithTimeout(s.storeHealthy, min(streamDrainTime, time.Until(drainDeadline)))
	defer cancelDrain()
	s.transports.Drain(drain)
	flush, cancelFlush := context.WithTimeout(
		context.WithoutCancel(s.storeHealthy), min(maxTraceFlushTime, max(minTraceFlushTime, time.Until(drainDeadline))),
	)
	defer cancelFlush()
	if lost, err := s.tracer.Close(flush); err != nil {
		s.log.Warn("spans not sent to the collector", "error", err, "lost_spans", lost)
	}
	s.log.Info("stopped")

	s.stopServe()
	err := s.group.Wait()
	if err == nil {
		err = context.Cause(s.storeHealthy)
	}
	return errors.Join(err, s.close())
}
