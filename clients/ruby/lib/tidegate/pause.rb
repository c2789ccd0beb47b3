# frozen_string_literal: true

require "erb"
require_relative "../tidegate"

module Tidegate
  # The words of Pause, for those who come from it: actions keep their classes and their calls, and the counting is the server's.
  #
  #   Pause = Tidegate::Pause
  #   Pause.configure { |config| config.gate = Tidegate::Client.new }
  #
  # A scope is the name of a limiter with `algorithm = "buckets"`. The checks of a class hold on the server once its policy has
  # them: `MyAction.policy` prints the lines.
  module Pause
    Configuration = Struct.new(:gate, :resolution, :history)
    # A check as the action declares it, and as the server tells it of an event.
    PeriodCheck = Struct.new(:period_seconds, :max_allowed, :block_ttl)
    # Why an action is limited. `sum` and `period_check` are there if this very call has blocked it.
    RateLimitedEvent = Struct.new(:action, :identifier, :sum, :timestamp, :period_check, :blocked_until)

    class << self
      def config
        @config ||= Configuration.new(Client.new, 600, 86_400)
      end

      def configure
        yield config
      end
    end

    # What is limited, for one identifier.
    class Action
      attr_reader :identifier

      class << self
        def scope(name = nil)
          name ? @scope = name.to_s : @scope
        end

        # As in Pause: `period_seconds`, `max_allowed`, `block_ttl`, by name or in this order.
        def check(*terms, period_seconds: terms[0], max_allowed: terms[1], block_ttl: terms[2])
          checks << PeriodCheck.new(period_seconds, max_allowed, block_ttl || period_seconds)
        end

        def checks
          @checks ||= []
        end

        # The limiter of these checks, for the server's policy.
        def policy
          limits = checks.map { |each| %("#{each.max_allowed} per #{each.period_seconds}s block #{each.block_ttl}s") }
          <<~TOML
            [[limiter]]
            name = "#{scope}"
            algorithm = "buckets"
            resolution = "#{Pause.config.resolution}s"
            history = "#{Pause.config.history}s"
            limits = [#{limits.join(', ')}]
          TOML
        end

        def tracked_identifiers
          keys("tracked")
        end

        def rate_limited_identifiers
          keys("blocked")
        end

        def unblock_all
          call("DELETE", "blocks").fetch("unblocked")
        end

        def enable
          call("POST", "enable").fetch("enabled")
        end

        def disable
          call("POST", "disable").fetch("enabled")
        end

        def enabled?
          call("GET").fetch("enabled")
        end

        def disabled?
          !enabled?
        end

        def call(method, path = nil, body = nil)
          Pause.config.gate.call(method, ["/v1/limiters", scope, path].compact.join("/"), body)
        end

        private

        # All pages of a listing.
        def keys(state)
          found, after = [], nil
          loop do
            page = call("GET", "keys?state=#{state}&most=1000#{"&after=#{after}" if after}")
            found.concat(page.fetch("keys"))
            after = page["next"] or return found
          end
        end
      end

      def initialize(identifier, &block)
        @identifier = identifier.to_s
        instance_exec(&block) if block
      end

      # Counts without asking. When the server does not answer, `on_failure` holds: with :allow what was done stays uncounted.
      def increment!(count = 1, timestamp = nil)
        call("POST", "increment", { count: count, timestamp: timestamp }.compact)
      rescue Unreachable => e
        raise unless gate.without_server(e).allowed?
      end

      # nil if it is not limited, or else why. A limit that is reached blocks it.
      def analyze
        told = call("POST", "analyze")
        event_of(told) unless told.fetch("status") == "ok"
      rescue Unreachable => e
        RateLimitedEvent.new(self, identifier) unless gate.without_server(e).allowed?
      end

      def ok?
        analyze.nil?
      end

      def rate_limited?
        !ok?
      end

      # Runs the block unless it is limited, and counts it once it has succeeded; otherwise tells why.
      def unless_rate_limited(count: 1, timestamp: nil)
        event = analyze
        return event if event

        result = yield
        increment!(count, timestamp)
        result
      end

      # Runs the block, with the event, if it is limited.
      def if_rate_limited
        event = analyze
        yield event if event
      end

      def block_for(seconds)
        call("PUT", "block", { for: "#{(seconds * 1000).ceil}ms" })
      end

      # Whether it was blocked. Its history is dropped, too.
      def unblock
        call("DELETE", "block").fetch("unblocked")
      end

      private

      def gate
        Pause.config.gate
      end

      def call(method, path, body = nil)
        self.class.call(method, "keys/#{ERB::Util.url_encode(identifier)}/#{path}", body)
      end

      def event_of(told)
        sum, timestamp, blocked_until = told.values_at("sum", "timestamp", "blocked_until")
        RateLimitedEvent.new(self, identifier, sum, timestamp, told["limit"] && check_of(told["limit"]), blocked_until)
      end

      SECONDS = { "us" => 0.000001, "ms" => 0.001, "s" => 1, "m" => 60, "h" => 3600, "d" => 86_400, "w" => 604_800 }.freeze
      private_constant :SECONDS

      # A limit as the server writes it: `1 per 2h block 4h`.
      def check_of(limit)
        max_allowed, period, block = limit.match(/\A(\d+) per (\w+)(?: block (\w+))?\z/).captures
        PeriodCheck.new(seconds(period), max_allowed.to_i, seconds(block || period))
      end

      def seconds(duration)
        duration.to_i * SECONDS.fetch(duration[/\D+/])
      end
    end
  end
end
