# frozen_string_literal: true

# May this happen now? A client of Tidegate, the rate limiter. It asks the server and counts nothing itself.
#
# "tidegate/rack" has the middleware, and "tidegate/pause" the words of Pause for those who come from it.
module Tidegate
  # The server gave no answer within the deadline. Hits turn it into a decision by `on_failure`.
  class Unreachable < StandardError; end

  # The server refuses the request itself: an unknown limiter, a key that is too long, a token that may not. It is never
  # taken for a failure of the server: otherwise a visitor with too long a name would never be limited.
  class Refused < StandardError
    attr_reader :status, :code, :detail

    def initialize(problem)
      @status, @code, @detail = problem.values_at("status", "code", "detail")
      super("#{status} #{code}: #{detail}")
    end
  end
end

require_relative "tidegate/decision"
require_relative "tidegate/connections"
require_relative "tidegate/client"
