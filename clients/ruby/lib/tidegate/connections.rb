# frozen_string_literal: true

require "ipaddr"
require "net/http"
require "openssl"
require "timeout"

module Tidegate
  # Connections to the server, kept and used again by many threads; no exchange takes longer than it was given.
  #
  # A hit must not be charged twice: only what failed before anything was sent is tried again, which is connecting.
  # Net::HTTP looks whether the server has closed a connection before it uses it again, and then opens another.
  class Connections
    IDLE_MAX = 32
    KEEP_ALIVE_S = 30
    RETRY_PAUSE_S = 0.01
    # Lookups at once: one cannot be ended, and those that hang must not pile up.
    LOOKUPS_MAX = 8
    FAILURES = [SystemCallError, IOError, SocketError, Timeout::Error, OpenSSL::SSL::SSLError,
                Net::ProtocolError, Net::HTTPBadResponse, Net::HTTPHeaderSyntaxError].freeze
    # What connecting fails with: the request was not sent.
    NOT_SENT = [Errno::ECONNREFUSED, Errno::EHOSTUNREACH, Errno::ENETUNREACH, SocketError].freeze

    def initialize(uri, ca_file: nil)
      @uri, @ca_file = uri, ca_file
      @lock = Mutex.new
      begin_anew
    end

    # Sends a request and gives the response, within so many seconds.
    def exchange(request, deadline)
      ends = now + deadline
      # Net::HTTP bounds each step; this bounds them all. What it interrupts is closed, never used again.
      Timeout.timeout(deadline) { attempt(request, ends) }
    rescue *FAILURES => e
      raise Unreachable, "#{e.message} within #{deadline} s"
    end

    def close
      taken = @lock.synchronize { @idle.slice!(0..) }
      taken.each { |connection| finish(connection) }
    end

    private

    def attempt(request, ends)
      pause = RETRY_PAUSE_S
      begin
        send_once(request, ends)
      rescue *NOT_SENT
        raise if now + pause >= ends

        sleep(pause)
        pause *= 2
        retry
      end
    end

    def send_once(request, ends)
      connection = take || open(ends)
      connection.read_timeout = connection.write_timeout = left(ends)
      response = connection.request(request)
      is_whole = true
      keep(connection)
      response
    ensure
      finish(connection) if connection && !is_whole
    end

    # A name may have several addresses: the first that takes the connection is the server's. One that does not answer has its
    # share of the time that is left, so that the others get theirs.
    def open(ends)
      all = addresses(ends)
      all.each_with_index do |address, index|
        return connect(address, left(ends) / (all.size - index))
      rescue *FAILURES
        raise if index == all.size - 1 || now >= ends
      end
    end

    def connect(address, timeout)
      connection = Net::HTTP.new(@uri.hostname, @uri.port, nil)
      connection.ipaddr = address
      connection.open_timeout = timeout
      connection.use_ssl = @uri.scheme == "https"
      connection.ca_file = @ca_file if @ca_file
      connection.keep_alive_timeout = KEEP_ALIVE_S
      connection.max_retries = 0
      connection.start
    end

    # Looking up a name cannot be interrupted; another thread does it, and the caller goes on at the deadline.
    def addresses(ends)
      return [@uri.hostname] if literal?

      # The deadline may end the wait for a place, and nothing between having it and the thread that gives it back.
      lookup = Thread.handle_interrupt(Exception => :on_blocking) do
        places = @lookups.push(nil)
        Thread.new { look_up(places) }
      end
      lookup.report_on_exception = false
      lookup.join(left(ends)) or raise Timeout::Error, "looking up #{@uri.hostname}"
      lookup.value
    end

    def look_up(places)
      Addrinfo.getaddrinfo(@uri.hostname, @uri.port, nil, :STREAM).map(&:ip_address).uniq
    ensure
      places.pop
    end

    def literal?
      IPAddr.new(@uri.hostname)
    rescue IPAddr::Error
      false
    end

    def take
      @lock.synchronize do
        begin_anew if @process != Process.pid
        @idle.pop
      end
    end

    # A process that was forked has none of its parent's connections, and none of its threads.
    def begin_anew
      @process, @idle, @lookups = Process.pid, [], SizedQueue.new(LOOKUPS_MAX)
    end

    def keep(connection)
      kept = @lock.synchronize { @idle.push(connection) if @idle.size < IDLE_MAX }
      finish(connection) unless kept
    end

    def finish(connection)
      connection.finish if connection.started?
    rescue *FAILURES
      nil
    end

    def left(ends)
      [ends - now, 0.001].max
    end

    def now
      Process.clock_gettime(Process::CLOCK_MONOTONIC)
    end
  end
end
