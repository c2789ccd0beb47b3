# frozen_string_literal: true

require_relative "../tidegate"

module Tidegate
  # Rack middleware: each request asks first, and what is denied never reaches the application. Fields that the application
  # sets itself stay as they are; it finds the decision in `env["tidegate.decision"]`.
  #
  #   use Tidegate::RateLimit, Tidegate::Client.new do |env|
  #     { limiter: "api", key: env["REMOTE_ADDR"] } # nil lets the request pass unasked
  #   end
  #
  # `count` says which requests stay charged: :all, only :failures (a status of 400 or more, or an application that raises), or
  # only :successes. All are charged before, and the others are given back after, within `hold` seconds.
  class RateLimit
    COUNTS = %i[all failures successes].freeze

    def initialize(app, gate, legacy_headers: false, count: :all, hold: Client::HOLD_S, &ask)
      raise ArgumentError, "a block must make the request to Tidegate of a Rack environment" unless ask
      raise ArgumentError, "count #{count} is not known; use :all, :failures or :successes" unless COUNTS.include?(count)

      @app, @gate, @legacy, @count, @hold, @ask = app, gate, legacy_headers, count, hold, ask
    end

    def call(env)
      request = @ask.call(env)
      return @app.call(env) unless request

      decision = env["tidegate.decision"] = decide(request)
      fields = decision.headers(legacy: @legacy).transform_keys(&:downcase)
      return deny(decision, fields, env) unless decision.allowed?

      status, headers, body = pass(env, request, decision.reservation)
      [status, headers.merge(fields.except(*headers.keys.map(&:downcase))), body]
    end

    private

    def decide(request)
      return @gate.ask(request) if @count == :all

      limiter, key, cost, peek = request.values_at(:limiter, :key, :cost, :peek)
      raise ArgumentError, "count #{@count} needs a limiter and a key, and no peek" unless limiter && key && !peek

      @gate.reserve(limiter, key, cost: cost || 1, hold: @hold)
    end

    # Ends the reservation, if there is one, when the server has sent the body and closes it.
    def pass(env, request, reservation)
      status, headers, body = @app.call(env)
      return status, headers, body unless reservation

      settling = true
      [status, headers, Settling.new(body) { |raised| settle(reservation, request, raised || status >= 400) }]
    ensure
      settle(reservation, request, true) if reservation && !settling
    end

    def settle(reservation, request, failed)
      if failed == (@count == :failures)
        @gate.commit(reservation, request[:cost] || 1)
      else
        @gate.cancel(reservation)
      end
    end

    # Names are in lower case, as Rack 3 wants them and Rack 2 takes them.
    def deny(decision, fields, env)
      body = decision.body
      content = { "content-type" => "application/problem+json", "content-length" => body.bytesize.to_s }
      [decision.status, content.merge(fields), env["REQUEST_METHOD"] == "HEAD" ? [] : [body]]
    end

    # A body after which something is to be done, once: when it is closed, which a server does in any case. It answers to what the
    # body answers to, as a server may want `each`, `call` or `to_path`, but for `to_ary`, by which it would not be closed.
    class Settling
      def initialize(body, &done)
        @body, @done, @raised = body, done, false
      end

      def each(&block)
        @body.each(&block)
      rescue StandardError
        @raised = true
        raise
      end

      def close
        @body.close if @body.respond_to?(:close)
      ensure
        done, @done = @done, nil
        done&.call(@raised)
      end

      def respond_to_missing?(name, include_all = false)
        name != :to_ary && @body.respond_to?(name, include_all)
      end

      def respond_to?(name, include_all = false)
        name == :each ? @body.respond_to?(:each) : super
      end

      def method_missing(name, *arguments, &block)
        respond_to_missing?(name) ? @body.public_send(name, *arguments, &block) : super
      end
    end
    private_constant :Settling
  end
end
