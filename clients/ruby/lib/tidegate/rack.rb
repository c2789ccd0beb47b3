# frozen_string_literal: true

require_relative "../tidegate"

module Tidegate
  # Rack middleware: each request asks first, and what is denied never reaches the application. Fields that the application
  # sets itself stay as they are.
  #
  #   use Tidegate::RateLimit, Tidegate::Client.new do |env|
  #     { limiter: "api", key: env["REMOTE_ADDR"] } # nil lets the request pass unasked
  #   end
  class RateLimit
    def initialize(app, gate, legacy_headers: false, &ask)
      raise ArgumentError, "a block must make the request to Tidegate of a Rack environment" unless ask

      @app, @gate, @legacy, @ask = app, gate, legacy_headers, ask
    end

    def call(env)
      request = @ask.call(env)
      return @app.call(env) unless request

      decision = @gate.ask(request)
      fields = decision.headers(legacy: @legacy).transform_keys(&:downcase)
      return deny(decision, fields) unless decision.allowed?

      status, headers, body = @app.call(env)
      [status, headers.merge(fields.except(*headers.keys.map(&:downcase))), body]
    end

    private

    # Names are in lower case, as Rack 3 wants them and Rack 2 takes them.
    def deny(decision, fields)
      body = decision.body
      content = { "content-type" => "application/problem+json", "content-length" => body.bytesize.to_s }
      [decision.status, content.merge(fields), [body]]
    end
  end
end
