# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = "tidegate"
  spec.version = "0.1.0"
  spec.summary = "May this happen now? A client of Tidegate, the rate limiter, with Rack middleware"
  spec.authors = ["The Tidegate authors"]
  spec.license = "Apache-2.0"
  spec.required_ruby_version = ">= 3.1"
  spec.files = Dir["lib/**/*.rb", "sig/*.rbs"] + ["README.md"]
end
